"""Messages against brokers that answer badly, late, or not at all."""

import struct
import threading
import tracemalloc

import pytest

from outbox.brokers.base import (
    Ending,
    Half,
    Outage,
    Prepared,
    Refused,
    Sent,
    Stored,
    Unknown,
)
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.frames import Frame
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.services.ports import free_port
from tests.unit.brokers.remoting_opened import DEADLINE, GROUP, TOPIC, Open, half, message, on_send
from tests.unit.brokers.remoting_server import FakeServer, answer, healthy, stored
from tests.waiting import expect_soon


@pytest.mark.parametrize(
    ("code", "remark", "outcome"),
    [
        (0, "", Stored),
        (10, "flush disk timeout", Stored),
        (11, "slave not available", Stored),
        (12, "flush slave timeout", Stored),
        (13, "the message is illegal", Refused),
        (16, "no permission", Refused),
        (17, "no topic", Refused),
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy", Outage),
        (14, "service not available", Outage),
        (1, "unsafe memory access", Unknown),
        (1, "request queueId[7] is illegal, TopicConfig [topicName=topic]", Outage),
        (29, "request queueId[7] is illegal, TopicConfig [topicName=topic]", Outage),
        (999, "something new", Unknown),
    ],
)
def test_what_an_answer_means(opened: Open, code: int, remark: str, outcome: type[Prepared]) -> None:
    # Given a broker that answers so
    ext = {"msgId": "7F00000100002A9F00000000000003E9", "queueOffset": "5"}
    _, broker = opened(on_send(lambda request: answer(request, code, ext=ext, remark=remark)))
    # When a half is sent; Then this is what became of it
    (got,) = broker.prepare([message()], timeout=DEADLINE)
    assert isinstance(got, outcome), got
    if isinstance(got, Stored):
        assert got.half.handle == "5 1001"
    else:
        assert remark in got.reason


def test_a_topic_that_has_lost_queues_stops_no_other_and_its_route_is_asked_for_anew(opened: Open) -> None:
    # Given a topic that has fewer queues than the route said
    server, broker = opened(on_send(lambda request: answer(request, 29, remark="request queueId[7] is illegal")))
    # When halves are sent; Then that is the trouble of this topic alone
    (outcome,) = broker.prepare([message()], timeout=DEADLINE)
    assert isinstance(outcome, Outage)
    assert outcome.partial
    # And its route is asked for again, long before it is old

    def sent_and_asked() -> bool:
        broker.prepare([message()], timeout=DEADLINE)
        return len(server.asked(Request.TOPIC_ROUTE)) > 1

    expect_soon(sent_and_asked, "the route is asked for again")


def test_a_half_is_sent_with_these_fields(opened: Open) -> None:
    # Given a broker; When a half is sent
    server, broker = opened(healthy)
    outgoing = message(key="order 1", tag="paid", properties={"a": "b"}, body=b"\0")
    broker.prepare([outgoing], timeout=DEADLINE)
    # Then the request is that of a transaction's first half, once
    (request,) = server.asked(310)
    properties = f"a\x01b\x02KEYS\x01order 1\x02UNIQ_KEY\x01{outgoing.unique_id}\x02TAGS\x01paid\x02"
    assert request.ext["i"] == properties + "TRAN_MSG\x01true\x02PGROUP\x01group\x02"
    assert {name: request.ext[name] for name in "abcdfhjkm"} == {
        "a": GROUP,
        "b": TOPIC,
        "c": "TBW102",
        "d": "8",
        "f": "4",
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    assert request.body == b"\0"


def test_a_plain_message_carries_no_transaction(opened: Open) -> None:
    # Given a broker; When a plain message is sent; Then nothing speaks of a transaction
    server, broker = opened(healthy)
    outgoing = message()
    assert broker.send([outgoing], timeout=DEADLINE) == [Sent(outgoing.unique_id)]
    (request,) = server.asked(310)
    assert request.ext["f"] == "0"
    assert "TRAN_MSG" not in request.ext["i"]


def test_answers_in_any_order_meet_their_message(opened: Open) -> None:
    # Given a broker that answers the last request first
    waiting: list[Frame] = []

    def reversed_answers(request: Frame) -> bytes | None:
        waiting.append(request)
        return b"".join(stored(each) for each in reversed(waiting)) if len(waiting) == 10 else None

    _, broker = opened(on_send(reversed_answers))
    # When ten are sent; Then each has its own position
    outcomes = broker.prepare([message() for _ in range(10)], timeout=DEADLINE)
    handles = [outcome.half.handle for outcome in outcomes if isinstance(outcome, Stored)]
    assert handles == [f"{request.opaque} {request.opaque}" for request in waiting]


def test_silence_is_unknown_and_a_late_answer_is_dropped(opened: Open) -> None:
    # Given a broker that answers only after the time is up
    asked: list[Frame] = []
    server, broker = opened(on_send(lambda request: asked.append(request)))
    # When two are sent; Then both may be stored (unless we got no turn, and nothing left in so short a time)

    def may_be_stored() -> bool:
        outcomes = {type(it) for it in broker.prepare([message(), message()], timeout=0.3)}
        assert outcomes <= {Unknown, Outage}
        return outcomes == {Unknown}

    expect_soon(may_be_stored, "both have left")
    assert server.connections == 1
    # When the answers come after all, among others; Then the connection still works
    server.push(b"".join(stored(request) for request in asked))
    (ended,) = broker.resolve([Ending(half(server), Verdict.COMMIT)], monotonic() + DEADLINE)
    assert ended.confirmation is Confirmation.CONFIRMED
    assert server.connections == 1


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack(">I", 2**31), id="2 GiB"),
        pytest.param(struct.pack(">II", 20, 5_000) + b"x" * 16, id="header longer than the frame"),
        pytest.param(struct.pack(">II", 6, 2) + b"[]", id="header without fields"),
        pytest.param(struct.pack(">II", 6, 0x01000002) + b"{}", id="another serialization"),
    ],
)
def test_garbage_drops_the_connection(opened: Open, garbage: bytes) -> None:
    # Given a broker that stores one message, answers a second one with garbage
    prefixes = iter([b"", garbage])
    server, broker = opened(on_send(lambda request: next(prefixes) + stored(request)))
    # When both are sent; Then what was answered before counts, the rest is unknown, at once
    outcomes = broker.prepare([message(), message()], timeout=60)
    assert [type(outcome) for outcome in outcomes] == [Stored, Unknown]
    # And the next call starts afresh
    (ended,) = broker.resolve([Ending(half(server), Verdict.COMMIT)], monotonic() + DEADLINE)
    assert ended.confirmation is Confirmation.CONFIRMED
    assert server.connections == 2


def test_an_announced_frame_of_2_gib_takes_no_memory(opened: Open) -> None:
    # Given a broker that announces 2 GiB and sends for as long as somebody reads
    _, broker = opened(on_send(lambda request: struct.pack(">I", 2**31 - 1) + bytes(1024 * 1024)))
    broker.resolve([], monotonic() + 1)
    tracemalloc.start()
    # When a message is sent
    (outcome,) = broker.prepare([message()], timeout=60)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Then it is unknown, and memory stays small (the server of this test shares it)
    assert isinstance(outcome, Unknown)
    assert peak < 16 * 1024 * 1024


def test_a_connection_that_ends_within_a_frame(opened: Open) -> None:
    # Given a broker that dies after half an answer
    servers: list[FakeServer] = []

    def die(request: Frame) -> bytes:
        threading.Timer(0.05, servers[0].hang_up).start()
        return stored(request)[:20]

    server, broker = opened(on_send(die))
    servers.append(server)
    # When a message is sent; Then it is unknown because of that, not of the time
    (outcome,) = broker.prepare([message()], timeout=60)
    assert isinstance(outcome, Unknown)
    assert "the connection ended" in outcome.reason


def test_nobody_there_is_an_outage(opened: Open) -> None:
    # Given a route to a broker that is gone
    server, broker = opened(healthy)
    assert isinstance(broker.prepare([message()], timeout=DEADLINE)[0], Stored)
    server.stop()
    expect_soon(lambda: not isinstance(broker.prepare([message()], timeout=1)[0], Unknown), "the end is noticed")
    # When messages are sent; Then they never left
    outcomes = broker.prepare([message(), message()], timeout=DEADLINE)
    assert [type(outcome) for outcome in outcomes] == [Outage, Outage]
    (ended,) = broker.resolve([Ending(half(server), Verdict.COMMIT)], monotonic() + DEADLINE)
    assert ended.confirmation is Confirmation.UNANSWERED


def test_a_topic_that_is_read_only_waits(opened: Open) -> None:
    # Given a topic that an operator has closed for writing; When a message is sent
    server, broker = opened(healthy, perm=4)
    (outcome,) = broker.prepare([message()], timeout=DEADLINE)
    # Then it is not sent, although the broker would have stored it
    assert isinstance(outcome, Outage)
    assert server.asked(310) == []


@pytest.mark.parametrize(
    "fields",
    [{"key": "a\x01b"}, {"tag": "\x02"}, {"properties": {"a\x01": ""}}, {"body": bytes(17 << 20)}, {"body": b""}],
)
def test_what_would_break_the_message_is_refused_here(opened: Open, fields: dict[str, object]) -> None:
    # Given such a message between good ones; When they are sent; Then only it is refused, and nothing of it is written
    server, broker = opened(healthy)
    outcomes = broker.prepare([message(), message(**fields), message()], timeout=DEADLINE)
    assert [type(outcome) for outcome in outcomes] == [Stored, Refused, Stored]
    assert len(server.asked(310)) == 2


def test_a_busy_broker_gets_less(opened: Open) -> None:
    # Given a broker that is busy above 20 messages at once, and answers when it has so many as it may get
    waiting: list[Frame] = []
    expected = [32, 16, 32, 16, 4]
    left = iter(expected)
    batch = [next(left)]

    def busy(request: Frame) -> bytes | None:
        waiting.append(request)
        if len(waiting) < batch[0]:
            return None
        answers = b"".join(answer(it, 2) if len(waiting) > 20 else stored(it) for it in waiting)
        waiting.clear()
        batch[0] = next(left, 0)
        return answers

    _, broker = opened(on_send(busy), in_flight=64)
    # When so many are sent
    outcomes = broker.prepare([message() for _ in range(sum(expected))], timeout=DEADLINE)
    # Then fewer are in flight after "busy", and more while it keeps up
    busy_ones, stored_ones = [Outage] * 32, [Stored] * 16
    assert [type(it) for it in outcomes] == [*(busy_ones + stored_ones) * 2, *[Stored] * 4]


def test_a_server_that_does_not_read_leaves_the_rest_unwritten(opened: Open) -> None:
    # Given a route to a broker that accepts and reads nothing, so that our bytes pile up
    server, _ = opened(healthy)
    with FakeServer(healthy, reads=False) as stalled:
        server.leads_to = {"broker-a": stalled.address}
        # When more is sent than the system's buffers hold
        # Then what began is unknown, what did not is an outage

        def began(broker: RemotingBroker) -> bool:
            outcomes = broker.prepare([message(body=bytes(3 << 20)) for _ in range(8)], timeout=1)
            kinds = [type(outcome) for outcome in outcomes]
            assert kinds == sorted(kinds, key=[Unknown, Outage].index)
            assert kinds[-1] is Outage
            return kinds[0] is Unknown

        opened.first_to_see(server.address, began)


def test_one_broker_that_hangs_or_is_away_harms_no_other(opened: Open) -> None:
    # Given a topic on three brokers: one healthy, one that says nothing, one that is away
    server, _ = opened(healthy)
    with FakeServer(lambda server, request: None) as silent:
        server.leads_to = {"a": server.address, "b": silent.address, "c": f"127.0.0.1:{free_port()}"}

        # When messages are sent to all of them; Then each message has the outcome of its own broker, in order
        def each_its_own(broker: RemotingBroker) -> bool:
            outcomes = broker.prepare([message() for _ in range(24)], timeout=1)
            return [type(outcome) for outcome in outcomes] == ([Stored] * 4 + [Unknown] * 4 + [Outage] * 4) * 2

        broker = opened.first_to_see(server.address, each_its_own)
        # And so it is when halves are ended
        halves = [Half(TOPIC, unique_ids.fresh(), name, "5 1001", GROUP) for name in "abcabc"]
        endings = [Ending(each, Verdict.ROLLBACK) for each in halves]
        wanted = [Confirmation.CONFIRMED, Confirmation.UNANSWERED, Confirmation.UNANSWERED] * 2
        expect_soon(
            lambda: [each.confirmation for each in broker.resolve(endings, monotonic() + 1)] == wanted,
            "each has the confirmation of its own broker",
        )


def test_a_lane_stays_on_its_queue(opened: Open) -> None:
    # Given a route with four queues; When messages of two lanes are sent; Then each lane has one queue, others go round
    server, broker = opened(healthy)
    broker.prepare([message(lane=lane) for lane in ("one", "two") * 5], timeout=DEADLINE)
    broker.prepare([message() for _ in range(8)], timeout=DEADLINE)
    queues = [request.ext["e"] for request in server.asked(310)]
    assert len(set(queues[:10:2])) == len(set(queues[1:10:2])) == 1
    assert sorted(queues[10:]) == sorted("01230123")


def test_a_name_server_that_hangs_up_an_idle_connection_is_dialled_again(opened: Open) -> None:
    # Given a transport whose route is asked for at each call, and servers that hang up between two calls
    server, _ = opened(healthy)
    broker = opened.client(server.address, routes_fresh=0)
    reader = f"remoting-{server.address}"
    for turn in range(1, 4):
        # When a half is sent; Then the call just works
        assert isinstance(broker.prepare([message()], timeout=DEADLINE)[0], Stored)
        assert len(server.asked(105)) == turn
        server.hang_up()
        expect_soon(lambda: reader not in {thread.name for thread in threading.enumerate()}, "the end is noticed")
