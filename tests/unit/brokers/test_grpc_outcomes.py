"""What the gRPC transport concludes from a proxy's answers, and from its silence."""

import hashlib
import hmac
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from rocketmq.grpc_protocol import Code, MessageType, service_pb2

from outbox.brokers.base import Ending, Half, Outage, Refused, Sent, Stored, Unknown
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.broker import GrpcBroker
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import message, prepare_one
from tests.services.ports import free_port
from tests.unit.brokers.grpc_proxy import ScriptedProxy, refused, status, stored
from tests.waiting import expect_soon

TOPIC = "payments"


@pytest.fixture
def proxy() -> Iterator[ScriptedProxy]:
    """A proxy that agrees to everything."""
    scripted = ScriptedProxy()
    yield scripted
    scripted.stop()


@pytest.fixture
def broker(proxy: ScriptedProxy) -> Iterator[GrpcBroker]:
    """A connection to it."""
    opened = GrpcBroker(Access(proxy.address), "group")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("code", "said", "outcome"),
    [
        (Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "control character", Refused),
        (Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "TopicMessageType validate failed", Refused),
        (Code.MESSAGE_PROPERTIES_TOO_LARGE, "max is 16384", Refused),
        (Code.TOPIC_NOT_FOUND, "no route", Outage),
        (Code.UNAUTHORIZED, "who are you", Outage),
        (Code.FORBIDDEN, "not yours", Refused),
        (Code.UNSUPPORTED, "no such thing", Refused),
        (Code.TOO_MANY_REQUESTS, "slow down", Outage),
        (Code.INTERNAL_SERVER_ERROR, "the broker did not answer", Unknown),
        (Code.PROXY_TIMEOUT, "late", Unknown),
    ],
)
def test_a_proxys_no_is_taken_for_what_it_is(
    proxy: ScriptedProxy, broker: GrpcBroker, code: Any, said: str, outcome: type[Refused | Unknown | Outage]
) -> None:
    # Given a proxy that says this; When a half is sent; Then so it is, in the proxy's words, after one attempt
    proxy.on_send = refused(code, said)
    (seen,) = broker.prepare([message(TOPIC)], 60)
    assert isinstance(seen, outcome)
    assert said in seen.reason
    assert len(proxy.sent) == 1


@pytest.mark.parametrize(
    "code", [Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT, Code.HA_NOT_AVAILABLE]
)
def test_a_half_whose_copy_is_late_is_stored(proxy: ScriptedProxy, broker: GrpcBroker, code: Any) -> None:
    # Given a master that stored a half while its disk or slave is late; When it is sent; Then it counts as stored
    def late(request: Any, _: Any) -> Any:
        answer = stored(request)
        answer.entries[0].status.code = code
        return answer

    proxy.on_send = late
    (seen,) = broker.prepare([message(TOPIC)], 60)
    assert isinstance(seen, Stored)


@pytest.mark.parametrize("code", [Code.UNAUTHORIZED, Code.FORBIDDEN])
def test_a_missing_right_names_the_settings(proxy: ScriptedProxy, broker: GrpcBroker, code: Any) -> None:
    proxy.on_send = refused(code, "no")
    (seen,) = broker.prepare([message(TOPIC)], 60)
    assert isinstance(seen, Refused | Outage)
    assert "OUTBOX_SECRET_KEY" in seen.reason


def test_a_topic_of_another_type_is_told_how_to_be_created(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    proxy.on_send = refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "TopicMessageType validate failed")
    (seen,) = broker.prepare([message(TOPIC)], 60)
    assert isinstance(seen, Refused)
    assert "message.type=TRANSACTION" in seen.reason


@pytest.mark.parametrize("body", [b"", b"x" * (4 * 1024 * 1024 + 1)], ids=["empty", "too large"])
def test_a_body_that_no_proxy_takes_does_not_travel(proxy: ScriptedProxy, broker: GrpcBroker, body: bytes) -> None:
    (seen,) = broker.prepare([message(TOPIC, body=body)], 60)
    assert isinstance(seen, Refused)
    assert "body" in seen.reason
    assert proxy.sent == []


def test_silence_after_sending_is_unknown(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a proxy that takes a half and never answers
    held = threading.Event()
    proxy.on_send = lambda request, _: held.wait(30)
    # When the time is over; Then it is unknown, unless we got no turn, and nothing left in so short a time

    def is_unknown() -> bool:
        (seen,) = broker.prepare([message(TOPIC)], 0.5)
        assert isinstance(seen, Unknown | Outage)
        return isinstance(seen, Unknown)

    expect_soon(is_unknown, "a half leaves", within=60)
    held.set()
    # And it was sent once
    sent = [it.system_properties.message_id for it in proxy.sent]
    assert len(set(sent)) == len(sent) > 0


def test_a_connection_lost_after_sending_is_unknown(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a proxy that dies with a half in its hands
    held = threading.Event()

    def die(request: Any, context: Any) -> Any:
        threading.Thread(target=proxy.stop).start()
        held.wait(30)
        return stored(request)

    proxy.on_send = die
    # When it is sent; Then it is unknown, after one attempt
    (seen,) = broker.prepare([message(TOPIC)], 60)
    held.set()
    assert isinstance(seen, Unknown)
    assert len(proxy.sent) == 1


def test_a_proxy_that_comes_back_is_found(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a proxy that was used, and went
    prepare_one(broker, message(TOPIC))
    proxy.stop()
    # When it is away; Then nothing leaves, once the client has noticed, and the reason tells why
    tried: list[object] = []

    def away() -> bool:
        tried.extend(broker.prepare([message(TOPIC)], 5))
        return isinstance(tried[-1], Outage)

    expect_soon(away, "nothing leaves", within=60)
    assert isinstance(tried[-1], Outage)
    assert proxy.address in tried[-1].reason
    # When it is back; Then it is used again
    proxy.restart()
    expect_soon(
        lambda: isinstance(broker.prepare([message(TOPIC)], 5)[0], Stored), "the proxy is used again", within=60
    )


def test_whatever_is_no_proxy_is_named(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a gRPC server that is no proxy; When a half is sent; Then it is refused with a question that helps
    proxy.on_route = lambda _, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service")
    (seen,) = broker.prepare([message(TOPIC)], 5)
    assert isinstance(seen, Refused)
    assert "proxy" in seen.reason


def test_a_proxy_without_brokers_is_an_outage(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    proxy.on_route = lambda *_: service_pb2.QueryRouteResponse(
        status=status(Code.INTERNAL_SERVER_ERROR, "no name server")
    )
    (seen,) = broker.prepare([message(TOPIC)], 5)
    assert isinstance(seen, Outage)
    assert "no name server" in seen.reason


def test_a_missing_topic_is_an_outage_of_that_topic_alone(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a topic that the proxy does not know; When a half is sent; Then no row is charged, and others may go on
    proxy.on_route = lambda *_: service_pb2.QueryRouteResponse(status=status(Code.TOPIC_NOT_FOUND, "no route"))
    (seen,) = broker.prepare([message(TOPIC)], 5)
    assert isinstance(seen, Outage)
    assert seen.partial
    assert TOPIC in seen.reason
    assert proxy.sent == []


def test_a_lane_is_a_message_group(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a half and a plain message in a lane; When they are sent
    broker.prepare([message(TOPIC, lane="order-42"), message(TOPIC, lane=None)], 60)
    broker.send([message(TOPIC, lane="order-42"), message(TOPIC, lane=None)], 60)
    # Then the proxy is told the lane, and half messages stay half messages
    seen = [(it.system_properties.message_type, it.system_properties.message_group) for it in proxy.sent]
    halves = [(MessageType.TRANSACTION, ""), (MessageType.TRANSACTION, "order-42")]
    assert sorted(seen) == sorted([*halves, (MessageType.FIFO, "order-42"), (MessageType.NORMAL, "")])


def test_a_topic_that_wants_groups_gets_one_for_every_message(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a topic that takes FIFO messages only; When a message without a lane is sent; Then it is a lane of its own
    proxy.on_route = lambda request, _: proxy.route(request, MessageType.FIFO)
    outgoing = message(TOPIC, lane=None)
    assert broker.send([outgoing], 60) == [Sent(outgoing.unique_id)]
    (sent,) = proxy.sent
    assert sent.system_properties.message_group == outgoing.unique_id


def test_an_ending_is_sent_once_whatever_came_of_it(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a proxy that has forgotten the half
    forgotten = status(Code.INTERNAL_SERVER_ERROR, "cannot found transaction data")
    proxy.on_end = lambda *_: service_pb2.EndTransactionResponse(status=forgotten)
    half = prepare_one(broker, message(TOPIC))
    # When it is committed twice
    first, second = (broker.resolve([Ending(half, Verdict.COMMIT)], monotonic() + 60)[0] for _ in range(2))
    # Then the first tells what the proxy said, the second was not sent; neither proves anything
    assert {first.confirmation, second.confirmation} == {Confirmation.UNANSWERED}
    assert "cannot found transaction data" in first.reason
    assert len(proxy.ended) == 1


def test_a_missing_right_to_end_is_denied(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    proxy.on_end = lambda *_: service_pb2.EndTransactionResponse(status=status(Code.FORBIDDEN, "no"))
    half = prepare_one(broker, message(TOPIC))
    (ended,) = broker.resolve([Ending(half, Verdict.COMMIT)], monotonic() + 60)
    assert ended.confirmation is Confirmation.DENIED


def test_a_connection_with_an_unanswered_commit_is_closed(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a half on a connection; When its COMMIT gets no answer within the window
    held = threading.Event()
    proxy.on_end = lambda *_: held.wait(60)

    def left() -> bool:
        half = prepare_one(broker, message(TOPIC))
        (ended,) = broker.resolve([Ending(half, Verdict.COMMIT)], monotonic() + 0.5)
        assert ended.confirmation is Confirmation.UNANSWERED
        return bool(proxy.ended)

    expect_soon(left, "a COMMIT leaves in so short a time", within=60)
    used = proxy.peers[-1]
    held.set()
    # Then that connection is used no more

    def another_is_used() -> bool:
        (outcome,) = broker.prepare([message(TOPIC)], 60)
        return isinstance(outcome, Stored) and proxy.peers[-1] != used

    expect_soon(another_is_used, "another connection is used", within=60)


def test_unknown_is_no_ending(broker: GrpcBroker) -> None:
    half = Half(TOPIC, "0" * 32, "proxy", "0" * 32, TOPIC)
    with pytest.raises(ValueError, match="COMMIT or ROLLBACK"):
        broker.resolve([Ending(half, Verdict.UNKNOWN)], monotonic() + 1)


def test_halves_that_nobody_ends_are_forgotten(
    proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a half that was never ended
    old = prepare_one(broker, message(TOPIC))
    # When a minute later another one is stored
    monkeypatch.setattr("outbox.brokers.grpc.halves.monotonic", lambda: monotonic() + 61)
    prepare_one(broker, message(TOPIC))
    # Then the old one is known no more
    broker.resolve([Ending(old, Verdict.COMMIT)], monotonic() + 60)
    assert proxy.ended == []


def test_every_call_is_signed(proxy: ScriptedProxy) -> None:
    # Given a user and a key
    told: list[dict[str, str]] = []

    def send(request: Any, context: Any) -> Any:
        told.append(dict(context.invocation_metadata()))
        return stored(request)

    proxy.on_send = send
    broker = GrpcBroker(Access(proxy.address, "me", "secret"), "group")
    # When a half is sent
    prepare_one(broker, message(TOPIC))
    broker.close()
    # Then the call names the user, and carries what only the key makes of its date
    date = told[0]["x-mq-date-time"]
    expected = hmac.new(b"secret", date.encode(), hashlib.sha1).hexdigest()
    assert "Credential=me," in told[0]["authorization"]
    assert told[0]["authorization"].endswith(f"Signature={expected}")


def test_nothing_is_dialled_before_it_is_needed() -> None:
    # Given a proxy that is not there; When a connection is opened and closed; Then nobody notices
    broker = GrpcBroker(Access(f"127.0.0.1:{free_port()}"), "group")
    assert not broker.checks_ready()
    broker.close()
