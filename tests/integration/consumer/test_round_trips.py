"""Calls of several threads that share a round trip to a real Redis."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from outbox.consumer import round_trips
from outbox.consumer.round_trips import RoundTrips
from outbox.identity import fresh_token
from tests.forked import in_a_child, knows_of_threads, needs_fork
from tests.waiting import expect_soon

_ECHO = "return {KEYS[1], ARGV[1]}"
_FAILS = "return redis.call('INCR', KEYS[1], ARGV[1])"


class Held:
    """The next trip goes on when it is let go."""

    def __init__(self, trips: RoundTrips) -> None:
        self.under_way, self.go = threading.Event(), threading.Event()
        self._trips, self._answers = trips, trips._answers
        vars(trips)["_answers"] = self

    def __call__(self, together: Sequence[Any]) -> list[Any]:
        del vars(self._trips)["_answers"]  # later trips are none of ours
        self.under_way.set()
        assert self.go.wait(60)
        return self._answers(together)


class Bench:
    """A thread that is under way, and others that wait for it."""

    def __init__(self, url: str, pool: ThreadPoolExecutor) -> None:
        self.url = url
        self.client = Redis.from_url(url, socket_timeout=60, retry=Retry(NoBackoff(), 0))
        self.echo = self.client.register_script(_ECHO)
        self.trips = RoundTrips(self.client)
        self._pool = pool

    def call(self, script: Any, key: str, argument: str = "") -> "Future[Any]":
        return self._pool.submit(self.trips.call, script, key.encode(), [argument])

    def leader(self) -> tuple[Held, "Future[Any]"]:
        held = Held(self.trips)
        first = self.call(self.echo, "first")
        assert held.under_way.wait(60)
        return held, first

    def followed(self, count: int) -> "tuple[Held, Future[Any], list[Future[Any]]]":
        """The others wait in their order: the first of them leads the next trip."""
        held, first = self.leader()
        others: list[Future[Any]] = []
        for number in range(count):
            others.append(self.call(self.echo, f"k{number}"))
            self.waiting(number + 1)
        return held, first, others

    def waiting(self, count: int) -> None:
        expect_soon(lambda: len(self.trips._waiting) == count, f"{count} wait")


def raising(error: BaseException) -> Callable[..., Any]:
    """What becomes of a trip that several calls share."""

    def trip(*_: object) -> Any:
        raise error

    return trip


@pytest.fixture
def bench(redis_server: str) -> Iterator[Bench]:
    with ThreadPoolExecutor(8) as pool:
        bench = Bench(redis_server, pool)
        yield bench
    bench.client.close()


def test_calls_that_come_meanwhile_share_the_next_trip_and_each_gets_its_own_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a thread that is under way, and five that call meanwhile, one of them with what Redis refuses
    held, first = bench.leader()
    others = [bench.call(bench.echo, f"k{number}", f"a{number}") for number in range(4)]
    wrong = bench.call(bench.client.register_script(_FAILS), f"wrong-{fresh_token()}", "x")
    bench.waiting(5)
    trips: list[int] = []
    answers = bench.trips._answers

    def counted(together: Sequence[Any]) -> list[Any]:
        trips.append(len(together))
        return answers(together)

    monkeypatch.setattr(bench.trips, "_answers", counted)
    # When it comes back
    held.go.set()
    # Then they share one trip, also where Redis did not have a script yet
    assert first.result(60) == [b"first", b""]
    assert [it.result(60) for it in others] == [[f"k{n}".encode(), f"a{n}".encode()] for n in range(4)]
    with pytest.raises(ResponseError):
        wrong.result(60)
    assert trips == [5]
    # And the next one finds nobody under way
    assert bench.call(bench.echo, "later").result(60) == [b"later", b""]


def test_redis_may_forget_its_scripts(bench: Bench) -> None:
    assert bench.call(bench.echo, "known").result(60) == [b"known", b""]
    held, first, others = bench.followed(3)
    bench.client.script_flush()
    held.go.set()
    assert [it.result(60)[0] for it in (first, *others)] == [b"first", b"k0", b"k1", b"k2"]


def test_all_that_share_a_lost_trip_hear_of_it_and_the_next_one_works(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given threads that wait for one under way
    held, first, others = bench.followed(3)

    # When their trip is lost / Then each of them raises that
    monkeypatch.setattr(bench.trips, "_answers", raising(ConnectionResetError("lost")))
    held.go.set()
    assert first.result(60) == [b"first", b""]
    for other in others:
        with pytest.raises(ConnectionResetError):
            other.result(60)
    monkeypatch.undo()
    assert bench.call(bench.echo, "later").result(60) == [b"later", b""]


def test_the_main_thread_waits_for_nobody_and_nobody_for_it(bench: Bench) -> None:
    # Given a thread that is under way, and others behind it
    held, first, others = bench.followed(2)

    def meanwhile(**_: object) -> object:
        held.go.set()
        return [it.result(60)[0] for it in (first, *others, bench.call(bench.echo, "later"))]

    # When the main thread calls, which a signal may interrupt anywhere
    mine = bench.trips.call(bench.echo, b"mine", [""])
    # Then it does not wait for their turn, and the others have theirs while it is under way
    assert mine == [b"mine", b""]
    assert bench.trips.call(meanwhile, b"mine", [""]) == [b"first", b"k0", b"k1", b"later"]


def test_those_who_share_a_trip_with_an_interrupted_leader_are_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, first, others = bench.followed(2)
    monkeypatch.setattr(bench.trips, "_answers", raising(KeyboardInterrupt()))
    held.go.set()
    first.result(60)
    assert isinstance(others[0].exception(60), KeyboardInterrupt)
    assert isinstance(others[1].exception(60), RedisError)
    monkeypatch.undo()
    assert bench.call(bench.echo, "later").result(60) == [b"later", b""]


@needs_fork
@knows_of_threads
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(bench: Bench) -> None:
    # Given a process in which a thread is under way
    held, first, others = bench.followed(2)
    # When a child of it calls / Then it waits for nobody, and takes nothing away
    with ThreadPoolExecutor(2) as own:
        trips = partial(own.map, lambda key: bench.trips.call(bench.echo, key, [""])[0], (b"c1", b"c2"))
        assert in_a_child(lambda: list(trips())) == "[b'c1', b'c2']"
    held.go.set()
    assert [it.result(60)[0] for it in (first, *others)] == [b"first", b"k0", b"k1"]


def test_a_connection_that_cannot_be_given_back_holds_up_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a script that Redis knows, and a pool that does something as a connection comes back, and fails
    bench.echo(keys=["known"], args=[""])
    held, first, others = bench.followed(3)
    monkeypatch.setattr(bench.client.connection_pool, "release", raising(ConnectionResetError("as it came back")))
    # When threads share a trip
    held.go.set()
    # Then the one that led it hears of that, and the others have their answers
    assert first.result(60) == [b"first", b""]
    assert isinstance(others[0].exception(60), ConnectionResetError)
    assert [it.result(60)[0] for it in others[1:]] == [b"k1", b"k2"]


def in_use(client: Redis) -> int:
    return len(client.connection_pool._in_use_connections)


class CountedPool(BlockingConnectionPool):
    taken = 0

    def get_connection(self, *given: Any, **named: Any) -> Any:
        self.taken += 1
        return super().get_connection(*given, **named)  # type: ignore[no-untyped-call]


def test_those_who_follow_each_other_use_one_connection_and_give_it_back(bench: Bench) -> None:
    # Given a client that may have one connection, and a Redis that knows the script
    one = CountedPool.from_url(bench.url, max_connections=1, timeout=60)
    bench.client.connection_pool = one
    bench.echo(keys=["known"], args=[""])
    one.taken = 0
    # When calls share trips
    held, first, others = bench.followed(3)
    held.go.set()
    assert [it.result(60)[0] for it in (first, *others)] == [b"first", b"k0", b"k1", b"k2"]
    # Then it is taken from the pool once, and the others who use the client find it free
    assert one.taken == 1
    expect_soon(lambda: bench.client.ping(), "the connection is free")
    one.disconnect()


def test_a_connection_that_redis_ends_between_trips_is_made_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given threads that wait for one whose connection Redis ends when it has answered
    bench.client.connection_pool.connection_kwargs["retry"] = Retry(NoBackoff(), 1)
    held, first, others = bench.followed(2)
    exchanged, sizes = round_trips._exchanged, list[int]()

    def ended(connection: Any, together: Sequence[Any]) -> list[Any]:
        sizes.append(len(together))
        answers = exchanged(connection, together)
        if len(sizes) == 1:
            with Redis.from_url(bench.url) as other:
                assert other.client_kill_filter(_type="normal", skipme=True)
        return answers

    monkeypatch.setattr(round_trips, "_exchanged", ended)
    # When they follow it / Then they are answered all the same
    held.go.set()
    assert [it.result(60)[0] for it in (first, *others)] == [b"first", b"k0", b"k1"]
    assert sizes == [1, 2, 2]
    expect_soon(lambda: in_use(bench.client) == 0, "given back")


def test_answers_that_an_interrupted_leader_did_not_read_reach_nobody_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a leader that is interrupted between the answers of a trip
    held, first, others = bench.followed(3)
    reads = iter((round_trips._read, round_trips._read, raising(KeyboardInterrupt())))
    monkeypatch.setattr(round_trips, "_read", lambda connection: next(reads)(connection))
    held.go.set()
    assert first.result(60) == [b"first", b""]
    assert isinstance(others[0].exception(60), KeyboardInterrupt)
    monkeypatch.undo()
    # When others call / Then each gets its own answer
    assert [bench.call(bench.echo, f"n{number}").result(60)[0] for number in range(4)] == [b"n0", b"n1", b"n2", b"n3"]
    assert in_use(bench.client) == 0
