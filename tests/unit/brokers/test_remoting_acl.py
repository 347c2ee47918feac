"""ACL signatures: what is signed, and that every request is."""

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from outbox.brokers.base import Ending, Outage, Outgoing, Refused, Stored
from outbox.brokers.remoting.acl import signature
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.pop import PopSource
from outbox.brokers.source import Delivery
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import look_up
from tests.unit.brokers.remoting_opened import GROUP, TOPIC, Open, half, message, on_send
from tests.unit.brokers.remoting_server import FakeServer, answer, healthy, stored
from tests.waiting import expect_soon

USER, SECRET = "orders", "a secret that nobody sees"
SIGN = signature(USER, SECRET)


def hmac_sha1(key: bytes, content: bytes) -> str:
    """RFC 2104 with SHA-1, in base64, from the hash alone."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in padded) + content).digest()
    return base64.b64encode(hashlib.sha1(bytes(byte ^ 0x5C for byte in padded) + inner).digest()).decode()


def is_signed(request: Frame) -> bool:
    """Whether the signature of a received request fits its fields and body."""
    fields: Mapping[str, str] = {name: value for name, value in request.ext.items() if name != "Signature"}
    content = "".join(fields[name] for name in sorted(fields)).encode(errors="replace") + request.body
    return fields["AccessKey"] == USER and request.ext["Signature"] == hmac_sha1(SECRET.encode(), content)


def test_the_values_are_signed_in_the_order_of_their_names() -> None:
    # Given fields out of order, and a body; When they are signed
    signed = signature("user", "key")({"b": "2", "Z": "1", "a": "ä"}, b"body")
    # Then capitals come first, the access key among them, and the fields themselves are unchanged
    assert signed == {
        "b": "2",
        "Z": "1",
        "a": "ä",
        "AccessKey": "user",
        "Signature": hmac_sha1(b"key", "user1ä2".encode() + b"body"),
    }


def test_a_request_without_fields_is_signed_as_well() -> None:
    assert signature("user", "key")({}, b"") == {"AccessKey": "user", "Signature": hmac_sha1(b"key", b"user")}


def test_half_a_surrogate_pair_is_signed_as_the_broker_reads_it() -> None:
    signed = signature("user", "key")({"i": "\ud800"}, b"")
    assert signed["Signature"] == hmac_sha1(b"key", b"user?")


@pytest.mark.parametrize(
    "fields",
    [{}, {"body": bytes(range(256))}, {"key": '订单%d"\\'}, {"properties": {"name": "\ud800 😀 %s"}}],
    ids=ascii,
)
def test_halves_are_signed_whatever_they_hold(opened: Open, fields: dict[str, object]) -> None:
    # Given a transport that signs; When a half is sent, with its fields and body
    server, broker = opened(healthy, sign=SIGN)
    assert isinstance(broker.prepare([message(**fields)], timeout=60)[0], Stored)
    # Then the server finds the signature right, over what it received
    (sent,) = server.asked(Request.SEND_MESSAGE_V2)
    assert is_signed(sent)


def test_every_request_of_a_producer_is_signed(opened: Open) -> None:
    # Given a transport that signs; When it sends, ends, looks up and listens
    server, broker = opened(healthy, sign=SIGN)
    broker.send([message()], timeout=60)
    broker.prepare([message()], timeout=60)
    ours = half(server)
    broker.resolve([Ending(ours, Verdict.COMMIT), Ending(ours, Verdict.ROLLBACK)], monotonic() + 60)
    look_up(broker, ours, datetime.now(UTC))
    broker.listen([TOPIC], lambda check, answer: None)
    expect_soon(broker.checks_ready, "the listener is registered")
    # Then nothing went out without a signature that fits
    assert {Request.SEND_MESSAGE_V2, Request.END_TRANSACTION, Request.QUERY_MESSAGE, Request.HEARTBEAT} <= {
        request.code for request in server.requests
    }
    assert [request.code for request in server.requests if not is_signed(request)] == []


def test_every_request_of_a_consumer_is_signed(opened: Open) -> None:
    # Given a source that signs, and a delivery
    def renewing(server: FakeServer, request: Frame) -> bytes | None:
        """Healthy, with what a renewal needs."""
        return answer(request, ext={"popTime": "2", "invisibleTime": "1000", "reviveQid": "0"})

    server, _ = opened(renewing)
    source = PopSource(server.address, GROUP, [TOPIC], sign=SIGN)
    receipt = "7 0 1 60000 0 0 broker-a 0 0"
    delivery = Delivery(TOPIC, b"", unique_ids.fresh(), (), None, {}, 1, receipt, monotonic() + 60)
    # When it receives, acknowledges one and several, gives back and buries
    source.receive(1, 0.1)
    source.acknowledge(delivery)
    source.acknowledge_all([delivery] * 2)
    source.later(delivery, 1)
    source.bury(delivery, "no use")
    source.close()
    # Then nothing went out without a signature that fits
    codes = {Request.POP_MESSAGE, Request.ACK_MESSAGE, Request.CHANGE_INVISIBLE, Request.SEND_MESSAGE_BACK}
    assert codes <= {request.code for request in server.requests}
    assert [request.code for request in server.requests if not is_signed(request)] == []


def test_without_a_key_nothing_is_signed(opened: Open) -> None:
    server, broker = opened(healthy)
    broker.prepare([message()], timeout=60)
    assert not any({"AccessKey", "Signature"} & request.ext.keys() for request in server.requests)


@pytest.mark.parametrize(("knows_us", "outcome"), [(True, Refused), (False, Outage)])
def test_no_permission_is_a_refusal_to_a_client_that_is_known(
    opened: Open, knows_us: bool, outcome: type[Refused | Outage]
) -> None:
    # Given a broker that permits nothing to a user that it knows, or to one that it does not
    def forbid(server: FakeServer, request: Frame) -> bytes:
        """Code 16; a heartbeat needs no right."""
        if knows_us and request.code == Request.HEARTBEAT:
            return answer(request)
        return answer(request, 16, remark="User:orders is not authorised")

    server, broker = opened(forbid, sign=SIGN)
    # When halves, a message and an ending are sent
    outcomes = [*broker.prepare([message(), message()], 10), *broker.send([message()], 10)]
    (ended,) = broker.resolve([Ending(half(server), Verdict.COMMIT)], monotonic() + 60)
    # Then it is these messages that are refused, or nothing at all gets through; all say what to check
    assert [type(it) for it in outcomes] == [outcome] * 3
    assert ended.confirmation is Confirmation.DENIED
    for said in [*(it.reason for it in outcomes if isinstance(it, Refused | Outage)), ended.reason]:
        assert said.startswith("code 16: User:orders is not authorised (permission refused: check OUTBOX_ACCESS_KEY")
        assert SECRET not in said


def test_no_permission_for_one_message_among_others_is_a_refusal(opened: Open) -> None:
    # Given a broker that stores all but one; When they are sent together; Then nobody asks whether it knows us
    turns = iter([stored, lambda request: answer(request, 16), stored])
    server, broker = opened(on_send(lambda request: next(turns)(request)), sign=SIGN)
    outcomes = broker.prepare([message() for _ in range(3)], 60)
    assert [type(it) for it in outcomes] == [Stored, Refused, Stored]
    assert server.asked(Request.HEARTBEAT) == []


def test_outgoing_messages_are_not_changed(opened: Open) -> None:
    # Given a message; When it is sent with a signature; Then the user's properties have gained nothing
    server, broker = opened(healthy, sign=SIGN)
    outgoing: Outgoing = message(properties={"a": "1"})
    broker.prepare([outgoing], timeout=60)
    assert outgoing.properties == {"a": "1"}
    assert "AccessKey" not in server.asked(Request.SEND_MESSAGE_V2)[0].ext["i"]
