"""The native client's producer and its threads, over a library that remembers."""

import gc
import threading

import pytest

from outbox.brokers.base import BrokerClosed, Outage, Outgoing, Refused, Unknown
from outbox.brokers.native.calls import Calls, Placed
from outbox.brokers.native.content import BODY_MAX, flaw_of, properties_of
from outbox.brokers.native.producer import Producer
from outbox.clock import monotonic
from outbox.identity import unique_ids
from tests.unit.brokers.native_library import FakeLibrary
from tests.waiting import expect_soon

HALF = {"TRAN_MSG": "true", "PGROUP": "orders"}
DEADLINE = 60.0


def outgoing(**fields: object) -> Outgoing:
    """A message; ``fields`` replace the defaults."""
    defaults: dict[str, object] = {"topic": "payments", "body": b"a\0b", "unique_id": unique_ids.fresh(), "key": "k"}
    return Outgoing(**{**defaults, **fields})  # type: ignore[arg-type]


def first(queues: int) -> int:
    """The number of the first queue."""
    return 0


def producer(library: FakeLibrary) -> Producer:
    """A producer that has not started."""
    return Producer(library, "127.0.0.1:9876", "orders-native")


def test_every_message_is_freed_once_whatever_became_of_it() -> None:
    # Given a client of which every third call fails
    library = FakeLibrary(on_send=lambda number: 13 if number % 3 == 0 else 0)
    sender = producer(library)
    # When many messages are sent
    outcomes = [sender.send(outgoing(), HALF, first) for _ in range(300)]
    # Then each was freed, and a failure is no more than unknown
    assert sorted(library.destroyed) == sorted(library.messages)
    assert [type(outcome) for outcome in outcomes[:3]] == [int, int, Unknown]
    sender.close()


def test_the_body_is_whole_and_the_queue_is_the_one_that_was_named() -> None:
    # Given a body with a zero byte; When it is sent to the third queue from the end of eight
    library = FakeLibrary()
    sender = producer(library)
    sender.send(outgoing(tag="paid", properties={"note": "é"}), HALF, lambda queues: queues - 3)
    # Then nothing is cut off, and the half names its group
    assert library.bodies == [b"a\0b"]
    assert library.queues == [5]
    assert {"KEYS": "k", "TAGS": "paid", "note": "é", **HALF}.items() <= library.sent[0].items()
    sender.close()


def test_our_unique_id_comes_behind_the_client_s_own() -> None:
    # Given the properties as the client writes them: sorted, with an id of its own among them
    message = outgoing()
    written = sorted({**properties_of(message, HALF), "UNIQ_KEY": "F" * 32}.items())
    text = "".join(f"{name}\x01{value}\x02" for name, value in written)
    # When the broker reads them: the last value counts, pieces without a name or with more parts do not
    pieces = [piece.split("\x01") for piece in text.split("\x02")]
    read = {piece[0]: piece[1] for piece in pieces if len(piece) == 2 and piece[0]}
    # Then the id is ours
    assert read == {"KEYS": "k", "UNIQ_KEY": message.unique_id, **HALF}


@pytest.mark.parametrize(
    "fields",
    [{"body": b""}, {"body": b"x" * (BODY_MAX + 1)}, {"key": "a\0b"}, {"properties": {"a": "\x02"}}, {"tag": "\ud800"}],
    ids=["empty", "too long", "zero", "separator", "half a pair"],
)
def test_what_cannot_be_carried_is_refused(fields: dict[str, object]) -> None:
    # Given a message that the client would cut or garble; When it is looked at; Then it is refused, with a reason
    flaw = flaw_of(outgoing(**fields))
    assert isinstance(flaw, Refused)
    assert flaw.reason
    assert flaw_of(outgoing()) is None


def test_it_starts_with_its_first_call_and_is_never_used_after_its_shutdown() -> None:
    # Given a producer that was never used, and one that was
    library = FakeLibrary()
    idle, used = producer(library), producer(library)
    assert library.started == 0
    used.send(outgoing(), {}, first)
    # When both are closed, twice
    for each in (idle, used, used):
        each.close()
    # Then the one that ran was shut down once, and takes no more
    assert (library.started, library.shut_down) == (1, 1)
    with pytest.raises(BrokerClosed):
        used.send(outgoing(), {}, first)


def test_close_waits_for_the_calls_under_way() -> None:
    # Given a call that lasts
    entered, leave = threading.Event(), threading.Event()

    def hold(number: int) -> int:
        entered.set()
        leave.wait(DEADLINE)
        return 0

    library = FakeLibrary(on_send=hold)
    sender = producer(library)
    call = threading.Thread(target=sender.send, args=(outgoing(), {}, first))
    call.start()
    assert entered.wait(DEADLINE)
    # When the producer is closed meanwhile
    closing = threading.Thread(target=sender.close)
    closing.start()
    leave.set()
    closing.join(DEADLINE)
    call.join(DEADLINE)
    # Then it was shut down, after the call (the library asserts it)
    assert library.shut_down == 1


def test_a_producer_that_is_dropped_is_shut_down() -> None:
    # Given a producer that nobody closes; When it is dropped; Then it is shut down all the same
    library = FakeLibrary()
    producer(library).send(outgoing(), {}, first)
    gc.collect()
    assert library.shut_down == 1


def placed(count: int, lane: str | None = None) -> list[Placed]:
    """Messages with a queue."""
    return [Placed(outgoing(lane=lane, key=str(number)), ("broker-a", 0), "127.0.0.1:10911") for number in range(count)]


def test_no_more_threads_than_allowed() -> None:
    # Given more messages than threads
    library = FakeLibrary()
    sender = producer(library)
    calls = Calls(threads=4)
    # When they are sent
    outcomes = calls.run(lambda it: sender.send(it.message, {}, first), placed(200), monotonic() + DEADLINE)
    # Then each is, on no more threads at once than that
    assert all(isinstance(outcome, int) for outcome in outcomes)
    assert library.most_at_once <= 4
    calls.close()
    sender.close()


def test_what_found_no_thread_in_time_never_left() -> None:
    # Given two threads whose calls hang
    leave = threading.Event()

    def two_began() -> bool:
        """When five messages are sent and the time is over: a short one, in which threads may get no turn."""
        calls = Calls(threads=2)
        outcomes = calls.run(lambda it: leave.wait(DEADLINE), placed(5), monotonic() + 0.05)
        every.append(calls)
        return [type(outcome) for outcome in outcomes] == [Unknown, Unknown, Outage, Outage, Outage]

    # Then two are unknown, and three were not sent
    every: list[Calls] = []
    expect_soon(two_began, "two began")
    leave.set()
    for calls in every:
        calls.close()


def test_one_lane_is_sent_in_order() -> None:
    # Given the messages of one lane; When they are sent; Then one after another
    sent: list[str] = []
    calls = Calls(threads=8)
    calls.run(lambda it: sent.append(it.message.key), placed(100, lane="order-42"), monotonic() + DEADLINE)
    assert sent == [str(number) for number in range(100)]
    calls.close()


def test_a_closed_producer_is_an_outage_to_its_threads() -> None:
    # Given a producer that is closed while a batch waits; When the batch goes on; Then nothing has left
    sender = producer(FakeLibrary())
    sender.close()
    calls = Calls(threads=2)
    outcomes = calls.run(lambda it: sender.send(it.message, {}, first), placed(3), monotonic() + DEADLINE)
    assert {type(outcome) for outcome in outcomes} == {Outage}
    calls.close()
