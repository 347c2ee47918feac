"""Requests to one broker, pipelined: many written at once, the answers collected together."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from outbox import faults
from outbox.brokers.remoting.connection import Closed, Connection, Exchange
from outbox.brokers.remoting.connections import Away, Connections
from outbox.brokers.remoting.frames import Frame
from outbox.once import Once

Share = TypeVar("Share")

#: The requests of a batch, given the opaque of the first.
Encode = Callable[[int], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back for a batch of requests to one broker."""

    #: An answer, or None: none came.
    frames: Sequence[Frame | None]
    #: How many of the requests left this process, at least in part.
    written: int
    #: Why nothing was written, or why answers are missing.
    reason: str
    #: Where the requests were sent; None: nowhere.
    connection: Connection | None

    def close(self) -> None:
        """Ends the connection that the requests were sent on."""
        if self.connection is not None:
            self.connection.close()


def exchange(
    connections: Connections,
    address: str,
    count: int,
    encode: Encode,
    until: float,
    *,
    point: str = "exchange.after_write",
) -> Answers:
    """Sends ``count`` requests and waits for their answers until ``until``; never raises for what the wire does.

    ``point``: the point of ``outbox.faults`` at which they are written and nothing is answered.
    """
    try:
        connection = connections.get(address, until)
        batch = connection.open_exchange(count)
    except (Away, Closed) as problem:
        return Answers([None] * count, 0, str(problem), None)
    try:
        connection.send(batch, encode(batch.first), until)
        faults.point(point)
        if batch.written:
            batch.wait(until)
    finally:
        connection.leave(batch)
    return Answers(batch.answers, batch.written, _reason(connection, batch), connection)


def _reason(connection: Connection, batch: Exchange) -> str:
    if not batch.left:
        return ""
    if connection.is_open:
        return f"{connection.address}: no answer in time"
    return f"{connection.address}: the connection ended before the answer"


def each(pool: Executor, work: Callable[[Share], None], shares: Sequence[Share]) -> None:
    """Does ``work`` for every share once, at the same time.

    In this thread the last one, which is all there is to one broker, then what finds no thread: the system has none
    left, all are busy, or the transport was closed meanwhile.
    """
    others = [Once(partial(work, share)) for share in shares[:-1]]
    for other in others:
        with suppress(RuntimeError):
            other.offer(pool)
    for share in shares[-1:]:
        work(share)
    for other in others:
        other.finish()
