"""A breaker for each broker: what one of several does is not felt by messages that go to the others."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from outbox.brokers.base import Outage, Stored
from outbox.brokers.remoting import breakers
from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.frames import Frame
from tests.services.ports import free_port
from tests.unit.brokers.remoting_opened import DEADLINE, Open, message
from tests.unit.brokers.remoting_server import FakeServer, answer, healthy
from tests.unit.brokers.test_remoting_placing import meets_silence
from tests.waiting import expect_soon

ADDRESS = "127.0.0.1:10911"


class AtOnce(ThreadPoolExecutor):
    """Runs what it is given in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(breakers, "monotonic", clock)
    return clock


def test_a_broker_is_pinged_after_a_pause_that_grows_to_a_most(clock: Clock) -> None:
    # Given a broker that fails and stays away for half an hour, while ten batches a second are placed
    pings: list[float] = []

    def ping(_address: str) -> bool:
        pings.append(clock.now)
        return False

    tested = Breakers(ping, AtOnce())
    tested.failed(ADDRESS)
    # When messages are placed; Then none goes there, and it is pinged ever more rarely
    while clock.now < 1900:
        clock.now += 0.1
        assert not tested.closed(ADDRESS)
        assert not tested.probes(ADDRESS)
    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(pings)]
    assert gaps[:4] == [2, 4, 8, 10]
    assert set(gaps[3:]) == {10}


def test_a_ping_that_fails_in_an_unforeseen_way_is_not_the_last(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    # Given a broker that has failed, and a first ping that raises
    pings = iter((ValueError("no such key"), None))

    def ping(_address: str) -> bool:
        if (error := next(pings)) is not None:
            raise error
        return True

    tested = Breakers(ping, AtOnce())
    tested.failed(ADDRESS)
    # When the pauses are over
    for _ in range(2):
        clock.now += 3
        tested.closed(ADDRESS)
    # Then it was pinged again, one message may find out, and the log tells of the first
    assert tested.probes(ADDRESS)
    assert f"{ADDRESS} cannot be pinged" in caplog.text


def test_one_message_finds_out_whether_a_broker_that_answers_takes_any(clock: Clock) -> None:
    # Given a broker that answers the first ping after its failure
    tested = Breakers(lambda _: True, AtOnce())
    tested.failed(ADDRESS)
    clock.now += 1
    assert not tested.closed(ADDRESS)
    # When several messages ask; Then one may go
    assert [tested.probes(ADDRESS) for _ in range(3)] == [True, False, False]
    # When it is not stored; Then there is another pause, a longer one
    tested.failed(ADDRESS)
    clock.now += 1.9
    assert not tested.closed(ADDRESS)
    assert not tested.probes(ADDRESS)
    clock.now += 0.2
    assert not tested.closed(ADDRESS)
    assert tested.probes(ADDRESS)
    # When it is; Then all may go
    tested.answered(ADDRESS)
    assert tested.closed(ADDRESS)
    assert tested.all_closed()


def test_a_message_that_was_to_find_out_and_vanished_is_replaced(clock: Clock) -> None:
    tested = Breakers(lambda _: True, AtOnce())
    tested.failed(ADDRESS)
    clock.now += 1
    tested.closed(ADDRESS)
    assert tested.probes(ADDRESS)
    clock.now += 60
    assert tested.probes(ADDRESS)


def test_a_host_that_says_nothing_is_asked_beside_the_sending(opened: Open) -> None:
    # Given a topic at two brokers, one of which takes connections and says nothing
    server, _ = opened(healthy)
    asked = threading.Event()

    def silent(_server: FakeServer, request: Frame) -> bytes | None:
        if request.code == Request.HEARTBEAT:
            asked.set()
        return None

    with FakeServer(silent) as other:
        server.leads_to = {"a": server.address, "b": other.address}
        broker = opened.first_to_see(server.address, meets_silence)
        lost = len(other.asked(Request.SEND_MESSAGE_V2))
        # When messages are sent until it has been asked whether it is back
        outcomes = []

        def sent_and_asked() -> bool:
            outcomes.extend(broker.prepare([message() for _ in range(8)], timeout=DEADLINE))
            return asked.is_set()

        expect_soon(sent_and_asked, "the silent broker is pinged")
        outcomes += broker.prepare([message() for _ in range(8)], timeout=DEADLINE)
        # Then all of them were stored by the other one, and none was spent on finding out
        assert {type(it) for it in outcomes} == {Stored}
        assert len(other.asked(Request.SEND_MESSAGE_V2)) == lost


def test_a_lane_of_a_broker_that_is_away_is_told_at_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a topic at two brokers, one of which takes nothing and is not asked again meanwhile, and lanes at both
    monkeypatch.setattr("outbox.brokers.remoting.breakers.PAUSE", 3600.0)
    server, broker = opened(healthy)
    full = lambda _server, request: answer(request, Code.SERVICE_NOT_AVAILABLE)  # noqa: E731
    with FakeServer(full) as other:
        server.leads_to = {"a": server.address, "b": other.address}
        lanes = [message(lane=f"order-{number}") for number in range(8)]
        first = broker.prepare(lanes, timeout=DEADLINE)
        asked = len(other.asked(Request.SEND_MESSAGE_V2))
        # When they are sent again; Then those of the broker that is away wait, and it is not bothered
        second = broker.prepare(lanes, timeout=DEADLINE)
        assert [type(it) for it in first] == [type(it) for it in second]
        assert {getattr(it, "partial", None) for it in second if isinstance(it, Outage)} == {True}
        assert len(other.asked(Request.SEND_MESSAGE_V2)) == asked


def test_where_no_broker_is_left_a_lane_tries_its_own(opened: Open) -> None:
    # Given a broker, the only one, that was away
    server, broker = opened(healthy)
    there = server.address
    server.leads_to = {"a": f"127.0.0.1:{free_port()}"}
    (away,) = broker.prepare([message(lane="order-1")], timeout=2)
    assert isinstance(away, Outage)
    # When it is back; Then the next message of the lane finds out
    server.leads_to = {"a": there}
    expect_soon(
        lambda: isinstance(broker.prepare([message(lane="order-1")], timeout=DEADLINE)[0], Stored), "the lane goes on"
    )
