"""The gRPC source before a scripted proxy: what it delivers, what it asks, and what it takes for an answer."""

import gzip
import hashlib
import logging
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from rocketmq.grpc_protocol import ClientType, Code, DigestType, Encoding, FilterType, definition_pb2, service_pb2

from outbox.brokers.base import BrokerClosed
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.source import GrpcSource
from outbox.brokers.source import Delivery
from outbox.clock import monotonic
from tests.unit.brokers.grpc_proxy import ScriptedProxy, status
from tests.waiting import expect_soon

DEADLINE = 60.0
BODY = bytes(range(256)) * 40
LONG = 300.0


@pytest.fixture
def proxy() -> Iterator[ScriptedProxy]:
    """A proxy that agrees to everything."""
    scripted = ScriptedProxy()
    yield scripted
    scripted.stop()


@pytest.fixture
def source(proxy: ScriptedProxy) -> Iterator[GrpcSource]:
    """A group's view of one topic."""
    opened = GrpcSource(Access(proxy.address), "stock", ["payments"], invisible=LONG)
    yield opened
    opened.close()


def delivered(body: bytes = BODY, *, wire: bytes | None = None, **system: Any) -> Any:
    """An answer with one message; ``wire``: the body as it travels."""
    wire = body if wire is None else wire
    digest = definition_pb2.Digest(type=DigestType.MD5, checksum=hashlib.md5(wire).hexdigest().upper())
    fields = {
        "message_id": "A" * 32,
        "receipt_handle": "0 1 2 3",
        "delivery_attempt": 1,
        "body_digest": digest,
        "body_encoding": Encoding.IDENTITY,
        **system,
    }
    message = definition_pb2.Message(body=wire, system_properties=definition_pb2.SystemProperties(**fields))
    return service_pb2.ReceiveMessageResponse(message=message)


def refused(code: Any, message: str) -> Any:
    """An answer that is no."""
    return service_pb2.ReceiveMessageResponse(status=status(code, message))


def receive(source: GrpcSource, wanted: int = 1) -> list[Delivery]:
    """What comes until there are ``wanted``."""
    received: list[Delivery] = []

    def enough() -> bool:
        received.extend(source.receive(32, 0.1))
        return len(received) >= wanted

    expect_soon(enough, "everything is delivered", within=DEADLINE)
    return received


def one(proxy: ScriptedProxy, source: GrpcSource) -> Delivery:
    """One delivery."""
    proxy.deliveries.put([delivered()])
    (delivery,) = receive(source)
    return delivery


def test_a_delivery_says_what_other_transports_say(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a message as the proxy takes it apart, from a namespace that it names beside the topic
    answer = delivered(tag="paid", keys=["order-1 order-2", " ", ""], delivery_attempt=3)
    answer.message.topic.resource_namespace, answer.message.topic.name = "tenant", "payments"
    answer.message.user_properties["outbox-key"] = "order-1"
    answer.message.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_250)
    proxy.deliveries.put([answer])
    # When it is received; Then keys are split as the broker splits them, and nothing is missing
    (delivery,) = receive(source)
    assert (delivery.topic, delivery.body, delivery.unique_id) == ("payments", BODY, "A" * 32)
    assert (delivery.keys, delivery.tag, delivery.attempt) == (("order-1", "order-2"), "paid", 3)
    assert delivery.born_at == 1_700_000_000.25
    known = {"outbox-key": "order-1", "UNIQ_KEY": "A" * 32, "KEYS": "order-1 order-2", "TAGS": "paid"}
    assert delivery.properties == known


def test_a_message_with_nothing_but_a_body(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a message without keys, tag and times, and a digest of a kind that nobody knows
    unknown = definition_pb2.Digest(checksum="?")
    proxy.deliveries.put([delivered(body_digest=unknown, delivery_attempt=0)])
    # When it is received; Then it says so
    (delivery,) = receive(source)
    assert (delivery.keys, delivery.tag, delivery.attempt, delivery.born_at) == ((), None, 1, None)


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress])
def test_a_compressed_body_is_inflated(proxy: ScriptedProxy, source: GrpcSource, compress: Any) -> None:
    proxy.deliveries.put([delivered(wire=compress(BODY), body_encoding=Encoding.GZIP)])
    (delivery,) = receive(source)
    assert delivery.body == BODY


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [(DigestType.CRC32, f"{zlib.crc32(b'a'):X}"), (DigestType.SHA1, hashlib.sha1(b"a").hexdigest())],
)
def test_every_kind_of_digest_is_checked(proxy: ScriptedProxy, source: GrpcSource, kind: Any, checksum: str) -> None:
    # Given a body with its digest, and another one with the same digest
    digest = definition_pb2.Digest(type=kind, checksum=checksum)
    bodies = [delivered(body, body_digest=digest) for body in (b"b", b"a")]
    # When they are received; Then only the first is good
    proxy.deliveries.put(bodies)
    assert [delivery.body for delivery in receive(source)] == [b"a"]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(delivered(body_digest=definition_pb2.Digest(type=DigestType.MD5, checksum="0" * 32)), id="digest"),
        pytest.param(delivered(b"\x04\x22\x4d\x18lz4", body_encoding=Encoding.GZIP), id="unknown compression"),
        pytest.param(delivered(wire=zlib.compress(BODY)[:-9], body_encoding=Encoding.GZIP), id="cut off"),
        pytest.param(delivered(receipt_handle=""), id="no receipt"),
    ],
)
def test_what_is_corrupted_is_not_delivered(
    proxy: ScriptedProxy, source: GrpcSource, bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a message that cannot be trusted before a good one
    proxy.deliveries.put([bad, delivered(b"good")])
    # When they are received; Then the good one comes, and the other is neither delivered nor acknowledged, but told
    assert [delivery.body for delivery in receive(source)] == [b"good"]
    assert proxy.acknowledged == []
    assert f"message {'A' * 32} of topic payments is not delivered" in caplog.text


def test_the_proxy_is_told_who_receives_what(proxy: ScriptedProxy) -> None:
    # Given a group that wants some tags of one topic and all of another
    wanted = {"payments": "paid || refunded", "orders": "*"}
    source = GrpcSource(Access(proxy.address), "stock", wanted, invisible=9.0)
    # When it has polled both, and is closed
    expect_soon(lambda: bool(source.receive(50, 0.1) or len(proxy.received) > 1), "both are polled", within=DEADLINE)
    source.close()
    # Then settings, polls, heartbeats and the farewell name the group
    subscription = proxy.settings[-1].subscription
    assert proxy.settings[-1].client_type == ClientType.SIMPLE_CONSUMER
    assert {each.topic.name: each.expression.expression for each in subscription.subscriptions} == wanted
    assert {each.message_queue.topic.name: each.filter_expression.expression for each in proxy.received} == wanted
    assert {each.filter_expression.type for each in proxy.received} == {FilterType.TAG}
    named = [subscription.group, *(each.group for each in (*proxy.received, *proxy.beats, *proxy.farewells))]
    assert {group.name for group in named} == {"stock"}
    # And a poll takes a third of the invisible time at most, and 32 messages
    poll = proxy.received[0]
    assert (poll.batch_size, poll.invisible_duration.ToSeconds(), poll.long_polling_timeout.ToSeconds()) == (32, 9, 3)
    assert poll.message_queue.broker.name == "broker-a"


def test_what_a_poll_brings_beyond_the_limit_waits(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a poll that brings three; When one is asked for at a time; Then each comes, and there was one poll
    proxy.deliveries.put([delivered(bytes([number])) for number in b"abc"])
    seen: list[bytes] = []

    def three() -> bool:
        deliveries = source.receive(1, 0.1)
        assert len(deliveries) <= 1
        seen.extend(delivery.body for delivery in deliveries)
        return len(seen) == 3

    expect_soon(three, "all three", within=DEADLINE)
    assert seen == [b"a", b"b", b"c"]
    assert len(proxy.received) == 1


def test_what_expired_while_it_waited_is_not_delivered(proxy: ScriptedProxy) -> None:
    # Given a message that comes when its invisible time, counted from the request, is over
    source = GrpcSource(Access(proxy.address), "stock", ["payments"], invisible=0.2)

    def late(_: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        asked = monotonic()
        expect_soon(lambda: monotonic() > asked + 0.3, "the time is over", within=DEADLINE)
        yield delivered()

    proxy.on_receive = late

    # When it is received; Then it is left for others
    def polled() -> bool:
        assert source.receive(1, 0.1) == []
        return len(proxy.received) > 2

    expect_soon(polled, "three polls", within=DEADLINE)
    source.close()


def test_a_refused_poll_is_told_once_and_tried_again(
    proxy: ScriptedProxy, source: GrpcSource, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a proxy that refuses twice
    for _ in range(2):
        proxy.deliveries.put([refused(Code.ILLEGAL_INVISIBLE_TIME, "too small")])
    proxy.deliveries.put([delivered()])
    # When messages are received; Then one comes in the end, and the reason and its remedy were told, once
    assert len(receive(source)) == 1
    assert caplog.text.count("too small (raise OUTBOX_INVISIBLE") == 1


def test_nothing_new_is_no_trouble(proxy: ScriptedProxy, source: GrpcSource, caplog: pytest.LogCaptureFixture) -> None:
    proxy.deliveries.put([refused(Code.MESSAGE_NOT_FOUND, "no new message")])
    proxy.deliveries.put([delivered()])
    assert len(receive(source)) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_came_before_a_poll_broke_is_delivered(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a poll that breaks off after its first message
    def broken(_: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delivered(b"before")
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    proxy.on_receive = broken
    # When messages are received; Then it is among them
    assert receive(source)[0].body == b"before"


def test_one_topics_trouble_does_not_hold_up_another(proxy: ScriptedProxy, caplog: pytest.LogCaptureFixture) -> None:
    # Given two topics, one of which does not exist
    source = GrpcSource(Access(proxy.address), "stock", ["missing", "payments"], invisible=LONG)

    def route(request: Any, _: Any) -> Any:
        if request.topic.name == "missing":
            return service_pb2.QueryRouteResponse(status=status(Code.TOPIC_NOT_FOUND, "no route"))
        return proxy.route(request)

    proxy.on_route = route
    # When messages are received; Then the other one's come
    assert one(proxy, source).topic == "payments"
    told = "nothing is received from topic missing at broker any: topic missing: no route"
    expect_soon(lambda: told in caplog.text, "the trouble is told", within=DEADLINE)
    source.close()


def test_it_receives_again_after_the_proxy_was_away(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a source that has received
    first = one(proxy, source)
    # When the proxy goes; Then receiving finds nothing, and nothing is confirmed
    proxy.stop()
    assert source.receive(1, 0.1) == []
    assert source.acknowledge(first) is False
    assert source.renew(first, LONG) is None
    # When it comes back and knows nobody; Then the source registers again, and receives
    proxy.restart()
    assert one(proxy, source).unique_id == first.unique_id
    assert source.acknowledge(first) is True


def test_a_renewal_replaces_the_receipt(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a delivery; When it is renewed, given back, buried
    delivery = one(proxy, source)
    ours = source.renew(delivery, 30.0)
    assert ours is not None
    assert source.later(ours, 5.0) is True
    assert source.bury(ours, "cannot be read") is True
    # Then each request has the latest receipt, and all name message, topic and group
    assert [each.receipt_handle for each in proxy.changed] == ["0 1 2 3", "renewed"]
    assert [each.invisible_duration.ToSeconds() for each in proxy.changed] == [30, 5]
    assert [each.receipt_handle for each in proxy.buried] == ["renewed"]
    assert [each.receipt_handle for each in proxy.acknowledged[0].entries] == ["renewed"]
    asked = [*proxy.changed, *proxy.buried, *proxy.acknowledged]
    assert {(each.group.name, each.topic.name) for each in asked} == {("stock", "payments")}
    assert {each.message_id for each in [*proxy.changed, *proxy.buried]} == {delivery.unique_id}


def test_a_no_is_told(proxy: ScriptedProxy, source: GrpcSource, caplog: pytest.LogCaptureFixture) -> None:
    # Given a proxy that says no, to one acknowledgement in its entry only
    delivery = one(proxy, source)
    no = status(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
    entries = [service_pb2.AckMessageResultEntry(status=no)]
    proxy.on_ack = lambda *_: service_pb2.AckMessageResponse(status=status(Code.OK), entries=entries)
    proxy.on_change = lambda *_: service_pb2.ChangeInvisibleDurationResponse(status=no)
    proxy.on_bury = lambda *_: service_pb2.ForwardMessageToDeadLetterQueueResponse(status=no)
    # When it is asked; Then nothing is confirmed, and what is not buried is not acknowledged
    assert source.acknowledge(delivery) is False
    assert source.renew(delivery, LONG) is None
    assert source.later(delivery, 1) is False
    assert source.bury(delivery, "reason") is False
    assert len(proxy.acknowledged) == 1
    assert caplog.text.count("receipt handle is expired") == 4


def test_a_renewal_without_a_receipt_is_none(proxy: ScriptedProxy, source: GrpcSource) -> None:
    delivery = one(proxy, source)
    proxy.on_change = lambda *_: service_pb2.ChangeInvisibleDurationResponse(status=status(Code.OK))
    assert source.renew(delivery, LONG) is None


def test_nothing_is_asked_about_a_delivery_that_has_expired(proxy: ScriptedProxy) -> None:
    # Given a delivery whose invisible time is over by our clock
    source = GrpcSource(Access(proxy.address), "stock", ["payments"], invisible=1.0)
    received: list[Delivery] = []

    def in_time() -> bool:
        proxy.deliveries.put([delivered()])
        received.extend(source.receive(1, 0.1))
        return bool(received)

    expect_soon(in_time, "one is received before its time is over", within=DEADLINE)
    (delivery,) = received
    expect_soon(lambda: monotonic() > delivery.invisible_until, "its time is over", within=DEADLINE)
    # When something is said about it; Then it is not said to the proxy
    assert source.acknowledge(delivery) is False
    assert source.renew(delivery, LONG) is None
    assert source.bury(delivery, "reason") is False
    assert [proxy.acknowledged, proxy.changed, proxy.buried] == [[], [], []]
    source.close()


def test_closing_ends_polls_at_once(proxy: ScriptedProxy, source: GrpcSource) -> None:
    # Given a poll that waits
    ended: list[bool] = []

    def waiting(_: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(lambda: ended.append(True))
        expect_soon(lambda: not context.is_active(), "the client ends it", within=DEADLINE)
        yield from ()

    proxy.on_receive = waiting
    expect_soon(lambda: bool(source.receive(1, 0.1) or proxy.received), "it polls", within=DEADLINE)
    # When the source is closed, twice; Then the poll is over, and the source says that it is closed
    source.close()
    source.close()
    expect_soon(lambda: ended == [True], "the poll is over", within=DEADLINE)
    with pytest.raises(BrokerClosed, match="stock"):
        source.receive(1, 0)


def test_an_orderly_group_receives_one_at_a_time(proxy: ScriptedProxy) -> None:
    # Given a group that is FIFO at the broker, and a member that knows it
    proxy.fifo = True
    proxy.deliveries.put([delivered(queue_id=3)])
    source = GrpcSource(Access(proxy.address), "stock", ["payments"], invisible=LONG, orderly=True)
    # When it receives; Then it asks for one message, whose lane is its queue
    assert [delivery.lane for delivery in receive(source)] == ["payments@broker-a/3"]
    assert {request.batch_size for request in proxy.received} == {1}
    source.close()


@pytest.mark.parametrize(
    ("orderly", "remedy"), [(True, "updateSubGroup … -g stock -o true"), (False, "set OUTBOX_ORDERLY=true")]
)
def test_a_group_of_another_kind_receives_nothing(
    proxy: ScriptedProxy, caplog: pytest.LogCaptureFixture, orderly: bool, remedy: str
) -> None:
    # Given a member that takes its group for another kind than the proxy does
    proxy.fifo = not orderly
    source = GrpcSource(Access(proxy.address), "stock", ["payments"], invisible=LONG, orderly=orderly)
    # When it receives; Then it is not given what it would work on in another order, and the log has the remedy

    def told() -> bool:
        assert source.receive(32, 0.1) == []
        return remedy in caplog.text

    expect_soon(told, "the remedy is told", within=DEADLINE)
    assert proxy.received == []
    source.close()
