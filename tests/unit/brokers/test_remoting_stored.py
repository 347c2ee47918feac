"""Stored messages, properties, and JSON as older servers write it."""

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.brokers.remoting.stored import (
    MalformedMessage,
    StoredMessage,
    decode_messages,
    decode_properties,
    encode_properties,
    loads_lenient,
)
from tests.unit.brokers.remoting_server import stored_message

WORDS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)

#: One message as a 5.x broker stores it, field by field (``MessageDecoder``).
VECTOR = bytes.fromhex(
    "00000067"  # total size
    "daa320a7"  # magic, version 1
    "00000000"  # CRC of the body
    "00000003"  # queue id
    "00000000"  # flag
    "0000000000000005"  # queue offset
    "00000000000003e9"  # commit-log offset
    "00000000"  # system flag
    "0000000000000001"  # born time
    "7f00000100002a9f"  # born host
    "0000018bcfe56800"  # store time
    "7f00000100002a9f"  # store host
    "00000002"  # times delivered
    "0000000000000000"  # prepared-transaction offset
    "0000000200ff"  # body
    "0174"  # topic "t"
    "00094b455953016b206c02"  # properties "KEYS" = "k l"
)


def test_a_message_is_read_from_these_bytes() -> None:
    # Given the bytes of a stored message; When they are read; Then these are its fields
    assert len(VECTOR) == 0x67
    (message,) = decode_messages(VECTOR)
    assert (message.topic, message.body, message.properties) == ("t", b"\x00\xff", {"KEYS": "k l"})
    assert (message.queue_id, message.queue_offset, message.commit_log_offset) == (3, 5, 1001)
    assert (message.reconsume_times, message.stored_at) == (2, 1_700_000_000_000)


@given(
    st.lists(st.tuples(WORDS.filter(lambda topic: len(topic.encode()) < 128), st.binary(max_size=64))),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_messages_stand_one_after_another(
    sent: list[tuple[str, bytes]], long_topics: bool, ipv6: bool, compressed: bool
) -> None:
    # Given messages of every shape; When they are read
    content = b"".join(
        stored_message(topic, body, {"a": topic}, long_topic=long_topics, ipv6=ipv6, compressed=compressed)
        for topic, body in sent
    )
    # Then all are there, in order
    assert [(seen.topic, seen.body, seen.properties) for seen in decode_messages(content)] == [
        (topic, body, {"a": topic}) for topic, body in sent
    ]


@given(st.binary(max_size=300))
def test_noise_is_no_message(noise: bytes) -> None:
    # Given any bytes; When they are read; Then they are refused (no bytes: no messages)
    if noise:
        with pytest.raises(MalformedMessage):
            list(decode_messages(noise))
    else:
        assert list(decode_messages(noise)) == []


@given(st.data())
def test_a_damaged_message_is_refused_or_read(data: st.DataObject) -> None:
    # Given a message with one byte changed, or cut off; When it is read; Then nothing but a refusal is raised
    place = data.draw(st.integers(0, len(VECTOR) - 1))
    damaged = VECTOR[:place] + data.draw(st.binary(max_size=1)) + VECTOR[place + 1 :]
    messages: list[StoredMessage] = []
    with suppress(MalformedMessage):
        messages.extend(decode_messages(damaged))
    assert len(messages) <= 1


def test_a_body_that_cannot_be_inflated_holds_up_no_other() -> None:
    # Given a body that inflates without end, one that is cut off, and one of LZ4, before an ordinary message
    bomb = zlib.compress(bytes(65 * 1024 * 1024))
    bodies = [bomb, zlib.compress(b"abc" * 100)[:10], b"\x04\x22\x4d\x18rest"]
    content = b"".join(stored_message("t", body, {}, flag=1) for body in bodies) + stored_message("t", b"good", {})
    # When they are read
    *odd, good = decode_messages(content)
    # Then each says why it is as it was stored, and the last one is whole
    assert [it.body for it in odd] == bodies
    for message, why in zip(odd, ["inflates", "cut off", "not by zlib"], strict=True):
        assert why in message.unreadable
    assert (good.body, good.unreadable) == (b"good", "")


def test_properties_that_are_no_utf_8_are_spelt_out() -> None:
    # Given a message whose producer wrote its tag in another encoding, before an ordinary one
    odd = stored_message("t", b"one", {"TAGS": "??"}).replace(b"??", "é".encode("latin-1") + b"\xff")
    content = odd + stored_message("t", b"two", {"TAGS": "b"})
    # When they are read / Then both are there
    assert [(it.body, it.properties["TAGS"]) for it in decode_messages(content)] == [
        (b"one", "\\xe9\\xff"),
        (b"two", "b"),
    ]


@given(st.dictionaries(WORDS, WORDS))
def test_properties_come_back(properties: dict[str, str]) -> None:
    # Given properties; When they are written and read; Then they are the same
    assert decode_properties(encode_properties(properties)) == properties


def test_properties_are_these_bytes() -> None:
    assert encode_properties({"a": "1", "b": ""}) == "a\x011\x02b\x01\x02"
    assert decode_properties("a\x011\x02broken\x02b\x01x=y") == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{0:"x",1:"y"}}', {"a": {"0": "x", "1": "y"}}),
        ('{"a":[{ 0 : "1,2:3" },{-1:{2:"{5:"}}]}', {"a": [{"0": "1,2:3"}, {"-1": {"2": "{5:"}}]}),
        ('{"0":"q\\",7:"}', {"0": 'q",7:'}),
        ("[1,2]", [1, 2]),
    ],
)
def test_numbers_may_be_keys(text: str, value: object) -> None:
    # Given JSON with keys that are not quoted; When it is read; Then they are, and strings are left alone
    assert loads_lenient(text.encode()) == value


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        loads_lenient(b"{0:")


def test_the_size_field_rules() -> None:
    # Given a size of zero, which would never end; When it is read; Then it is refused
    with pytest.raises(MalformedMessage):
        list(decode_messages(struct.pack(">I", 0) + VECTOR[4:]))
