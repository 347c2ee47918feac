"""RocketMQ's limits, field by field; whatever is accepted fits them."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import create_engine

from outbox import Outbox
from outbox.errors import InvalidMessage
from outbox.message import (
    BODY_BYTES,
    CONTENT_TYPE_BYTES,
    KEY_BYTES,
    PROPERTY_BYTES,
    RESERVED_PROPERTIES,
    TAG_BYTES,
    TOPIC_BYTES,
    Message,
    encode,
)
from outbox.timer import Timer


def message(**fields: Any) -> Message:
    return Message(**{"topic": "payments", "key": "order-42:paid", "body": b"{}"} | fields)


def refused(**fields: Any) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        message(**fields)
    return caught.value


@pytest.mark.parametrize("topic", ["a", "Payments_v2-eu", "x" * TOPIC_BYTES, "%RETRY%".strip("%"), "0"])
def test_a_topic_that_the_broker_takes(topic: str) -> None:
    assert message(topic=topic).topic == topic


@pytest.mark.parametrize(
    "topic",
    ["", " ", "x" * (TOPIC_BYTES + 1), "pay.ments", "pay ments", "zahlüng", "a/b", "a\n", "%RETRY%g", "%DLQ%g",
     "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC",
     "TRANS_CHECK_MAX_TIME_TOPIC", None, 7, b"payments"],
    ids=repr,
)  # fmt: skip
def test_a_topic_that_it_does_not(topic: Any) -> None:
    error = refused(topic=topic)
    assert error.field == "topic"
    assert str(error).startswith("topic: ")


@pytest.mark.parametrize(
    "key",
    [
        "order 42",
        " a",
        "a ",
        "订单-42",
        'say "hi"',
        "it's",
        "a\\b",
        "%s {x}",
        "é",
        "e\u0301",
        "k" * KEY_BYTES,
        "😀" * 63,
    ],
)
def test_a_key_is_carried_as_it_is(key: str) -> None:
    assert message(key=key).key == key


@pytest.mark.parametrize(
    "key",
    ["", "  ", "\u3000", "k\x01v", "k\x02v", "k\x00v", "k\tv", "k\n", "k\x7f", "k" * 300, "k" * (KEY_BYTES + 1),
     "é" * 128, "\ud800", None, 42, b"k"],
    ids=ascii,
)  # fmt: skip
def test_a_key_that_cannot_be_carried(key: Any) -> None:
    assert refused(key=key).field == "key"


@pytest.mark.parametrize("tag", ["paid", "x" * TAG_BYTES, "已付", "a b"])
def test_a_tag_is_carried(tag: str) -> None:
    assert message(tag=tag).tag == tag


@pytest.mark.parametrize(
    "tag", ["", "*", "a||b", "a|b", " a", "a ", "a\x01", "x" * (TAG_BYTES + 1), 1, "\udfff"], ids=ascii
)
def test_a_tag_that_a_subscription_would_misread(tag: Any) -> None:
    assert refused(tag=tag).field == "tag"


def test_a_body_of_4_mib_passes_and_one_byte_more_does_not() -> None:
    assert len(message(body=bytes(BODY_BYTES)).body) == 4 * 1024 * 1024
    assert refused(body=bytes(BODY_BYTES + 1)).field == "payload"
    assert refused(body=b"").field == "payload"


@pytest.mark.parametrize("content_type", ["", "x" * (CONTENT_TYPE_BYTES + 1), "text/plain\r\n", None], ids=repr)
def test_a_content_type_out_of_bounds(content_type: Any) -> None:
    assert refused(content_type=content_type).field == "content_type"


def test_a_content_type_that_fits() -> None:
    assert message(content_type="application/cloudevents+json; charset=UTF-8").content_type.endswith("UTF-8")


@pytest.mark.parametrize("name", [*sorted(RESERVED_PROPERTIES), "outbox-key", "outbox-anything"])
def test_a_reserved_header_name(name: str) -> None:
    error = refused(headers={name: "v"})
    assert name in error.field
    assert "reserved" in str(error)


@pytest.mark.parametrize(
    "headers",
    [{"": "v"}, {" ": "v"}, {"n\x01": "v"}, {"n": "v\x02"}, {"n": "v\x01"}, {"n": "\x00"}, {"n": 1}, {"n": None},
     {1: "v"}, {"n": "\ud800"}],
    ids=ascii,
)  # fmt: skip
def test_a_header_that_cannot_be_carried(headers: Any) -> None:
    assert refused(headers=headers).field.startswith("headers[")


def test_headers_share_one_limit_with_the_key() -> None:
    most = PROPERTY_BYTES - 2 * len("order-42:paid") - len("n") - 2
    assert message(headers={"n": "v" * most}).headers == {"n": "v" * most}
    assert refused(headers={"n": "v" * (most + 1)}).field == "headers"


def test_empty_header_values_pass() -> None:
    assert message(headers={"traceparent": ""}).headers == {"traceparent": ""}


def test_a_naive_not_before_is_refused() -> None:
    assert refused(not_before=datetime(2030, 1, 1)).field == "not_before"  # noqa: DTZ001 -- the case in question
    aware = datetime(2030, 1, 1, tzinfo=UTC)
    assert message(not_before=aware).not_before == aware


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        message().key = "another"  # type: ignore[misc]


def accepted_or_fault(topic: str, key: str, body: bytes, tag: str | None, headers: dict[str, str]) -> Message | str:
    """The message, or the name of the field at fault."""
    try:
        return Message(topic, key, body, tag, headers=headers)
    except InvalidMessage as error:
        return error.field


anything = st.text(max_size=300)


@given(
    topic=st.one_of(anything, st.from_regex(r"[A-Za-z0-9_-]{1,140}", fullmatch=True)),
    key=anything,
    tag=st.none() | anything,
    body=st.binary(max_size=100),
    headers=st.dictionaries(anything, anything, max_size=5),
)
def test_whatever_is_accepted_fits_the_protocol(
    topic: str, key: str, tag: str | None, body: bytes, headers: dict[str, str]
) -> None:
    # Given any message
    accepted = accepted_or_fault(topic, key, body, tag, headers)
    # When it is refused / Then the field at fault is named
    if isinstance(accepted, str):
        assert accepted.split("[")[0] in {"topic", "key", "tag", "payload", "headers"}
        return
    # When it is accepted / Then its properties survive RocketMQ's own encoding
    properties = {"KEYS": accepted.key, **({"TAGS": accepted.tag} if accepted.tag else {}), **accepted.headers}
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    assert len(encoded) <= PROPERTY_BYTES + len("KEYS") + len("TAGS") + TAG_BYTES + 4
    pairs = [pair.split("\x01") for pair in encoded.decode().split("\x02") if pair]
    assert {pair[0]: pair[1] for pair in pairs} == properties
    assert 0 < len(accepted.body) <= BODY_BYTES
    assert len(accepted.topic) <= TOPIC_BYTES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(payload=json_values)
def test_a_json_payload_reads_back(payload: Any) -> None:
    body, content_type = encode(payload)
    assert content_type == "application/json"
    assert json.loads(body) == payload


@given(pairs=st.lists(st.tuples(st.text(), st.integers()), unique_by=lambda pair: pair[0], max_size=6))
def test_equal_payloads_are_equal_bytes_whatever_their_order(pairs: list[tuple[str, int]]) -> None:
    assert encode(dict(pairs)) == encode(dict(reversed(pairs)))


class Paid(BaseModel):
    order: int
    amount: Decimal
    at: datetime


def test_a_pydantic_model_is_written_as_json() -> None:
    body, content_type = encode(Paid(order=42, amount=Decimal("9.90"), at=datetime(2030, 1, 1, tzinfo=UTC)))
    assert content_type == "application/json"
    assert json.loads(body) == {"order": 42, "amount": "9.90", "at": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "payload", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")], ids=lambda it: type(it).__name__
)
def test_bytes_stay_as_they_are(payload: Any) -> None:
    assert encode(payload) == (b"\x00\xff", "application/octet-stream")


@pytest.mark.parametrize(
    "payload", [object(), float("nan"), float("inf"), "\ud800"], ids=["object", "nan", "inf", "surrogate"]
)
def test_a_payload_that_is_no_json(payload: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode(payload)
    assert caught.value.field == "payload"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"not_before": datetime(2030, 1, 1)}, "not_before"),  # noqa: DTZ001 -- the case in question
        ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at"),  # noqa: DTZ001
        ({"delay": 400}, "delay"),
        ({"not_before": "2030-01-01"}, "not_before"),
        ({"deliver_at": 1_900_000_000}, "deliver_at"),
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": timedelta(days=36_526)}, "delay"),
        ({"delay": timedelta(1), "not_before": datetime(2030, 1, 1, tzinfo=UTC)}, "delay"),
        ({"delay": timedelta(1), "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay"),
        ({"delay_level": 3, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay_level"),
        ({"delay_level": 0}, "delay_level"),
        ({"delay_level": 19}, "delay_level"),
        ({"not_before": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "not_before"),
        ({"not_before": datetime.min.replace(tzinfo=UTC)}, "not_before"),
        ({"deliver_at": datetime.max.replace(tzinfo=UTC)}, "deliver_at"),
        ({"deliver_at": datetime(1970, 1, 1, tzinfo=UTC)}, "deliver_at"),
    ],
    ids=str,
)
def test_a_start_that_cannot_be_meant_names_its_argument(words: dict[str, Any], field: str) -> None:
    with create_engine("sqlite://").connect() as connection, pytest.raises(InvalidMessage) as caught:
        Outbox(origin="tests", plain_topics={"logs"}).add(connection, topic="logs", key="k", payload={}, **words)
    assert caught.value.field == field


@pytest.mark.parametrize("words", [{"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, {"delay_level": 1}], ids=str)
def test_the_brokers_timer_is_refused_for_transactional_messages(words: dict[str, Any]) -> None:
    # Given a topic of transactional messages / When a message with a timer is added; Then the remedy is named
    with (
        create_engine("sqlite://").connect() as connection,
        pytest.raises(InvalidMessage, match="not_before") as caught,
    ):
        Outbox(origin="tests").add(connection, topic="payments", key="k", payload={}, **words)
    assert caught.value.field in words


def test_the_moment_of_delivery_is_written_in_utc_milliseconds() -> None:
    moment = datetime(2030, 1, 1, 1, 0, 0, 250_999, tzinfo=timezone(timedelta(hours=1)))
    assert Timer(moment).properties() == {"TIMER_DELIVER_MS": "1893456000250"}
