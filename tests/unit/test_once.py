"""Work that is offered to a pool is done once, also where the system has no thread left for it."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connections import Away, Connections
from outbox.brokers.remoting.pipeline import each
from outbox.clock import monotonic
from outbox.once import Once
from outbox.settings import Settings
from outbox.store.attempt import Attempt
from relay.breaker import Breaker
from relay.loop import Loop
from relay.shipping import Pass
from relay.wake import Wake
from tests.waiting import expect_soon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere so large a stack may be had")


@contextmanager
def no_threads() -> Iterator[None]:
    """No thread can be started: there is no room for its stack."""
    before = threading.stack_size(2**46)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def busy_pool() -> Iterator[ThreadPoolExecutor]:
    """A pool with one thread, which has something to do until the end, and then does what waits."""
    begun, over = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(4)

    def wait() -> None:
        begun.set()
        over.wait()

    pool.submit(wait)
    begun.wait()
    with no_threads():
        yield pool
    over.set()
    pool.shutdown(wait=True)


def test_every_share_is_done_once() -> None:
    done: list[str] = []
    # Given a pool that can start no more threads; When work is shared out
    with busy_pool() as pool:
        each(pool, done.append, ["first", "second", "third"])
        assert sorted(done) == ["first", "second", "third"]
    # Then no thread of the pool does it again once it is free
    assert sorted(done) == ["first", "second", "third"]


def test_what_was_taken_back_is_done_by_nobody() -> None:
    done: list[str] = []
    # Given work that a pool refused; When it is taken back
    with busy_pool() as pool:
        work = Once(lambda: done.append("work"))
        with pytest.raises(RuntimeError):
            work.offer(pool)
        assert work.take()
    # Then the pool does not do it later, and nobody takes it twice
    assert done == []
    assert not work.take()


def test_what_a_thread_raised_is_raised() -> None:
    def fail(_share: str) -> None:
        raise ValueError("of the share")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="of the share"):
        each(pool, fail, ["first", "second"])


class TwoClaims:
    """A pass of one row, twice."""

    def __init__(self) -> None:
        self.loop: Loop
        self.claims = iter(("first", "second"))
        self.released: list[object] = []
        self.shipped: list[object] = []

    def claim(self) -> tuple[Sequence[Attempt], float]:
        return [cast(Attempt, Row(next(self.claims)))], 0.0

    def release(self, attempts: Sequence[Attempt]) -> None:
        self.released += attempts

    def ship(self, attempts: Sequence[Attempt], since: float) -> None:
        self.shipped += attempts
        self.loop.stop()


class Row(str):
    """Stands for an attempt."""

    __slots__ = ()
    lane = None


def test_rows_that_no_thread_can_ship_go_back() -> None:
    # Given a loop that has claimed a row
    passes = TwoClaims()
    breaker = Breaker(1, 2, monotonic)
    passes.loop = Loop(cast(Pass, passes), breaker, lambda: 0.0, Wake(monotonic), Settings(passes=1))
    # When no thread can be started; Then the loop says so, and gives the row back at once
    with no_threads(), pytest.raises(RuntimeError):
        passes.loop.run()
    assert (passes.released, passes.shipped) == (["first"], [])
    # When it is started again, and there are threads; Then it ships what it claims then, and nothing else
    passes.loop.run()
    assert (passes.released, passes.shipped) == (["first"], ["second"])


def test_a_server_is_away_where_no_thread_can_listen_to_it() -> None:
    # Given a server that takes connections; When no thread can be started for its answers
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = Connections()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        # Then it counts as away, which is an outage, and the connection is ended
        with no_threads(), pytest.raises(Away, match="thread"):
            connections.call(address, Request.HEARTBEAT, {})
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(1) == b""
        connections.close()


class NoThreadAtFirst(ThreadPoolExecutor):
    """Refuses the first piece of work."""

    refused = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self.refused:
            self.refused = True
            raise RuntimeError("can't start new thread")
        return super().submit(fn, *args, **kwargs)


def test_a_broker_that_no_thread_could_ping_is_pinged_later() -> None:
    pinged = threading.Event()

    def ping(_address: str) -> bool:
        pinged.set()
        return True

    with NoThreadAtFirst(1) as pool:
        # Given a broker that failed; When no thread can be started to ping it, and later on one can
        breakers = Breakers(ping, pool)
        breakers.failed("127.0.0.1:10911")
        # Then it is pinged all the same
        expect_soon(lambda: not breakers.closed("127.0.0.1:10911") and pinged.is_set(), "it is pinged")
