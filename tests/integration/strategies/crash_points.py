"""Where the crash test strikes a consumer process: hooks beside the product, one strike for each consumer."""

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from outbox.brokers.source import Delivery, Source

_EFFECT: Final = "INSERT INTO effects"
#: A connection's note of the consumer whose effect its open transaction holds.
_HOLDS: Final = "effect_of"
#: COM_QUERY of MySQL's protocol.
_QUERY: Final = 3


class Point(Enum):
    """Each is the document's name for itself, in the order in which a message passes them."""

    NONE = "none"
    RECEIVED = "after reception"
    CLAIMED = "after the claim, before the first write"
    WRITTEN = "inside the handler, after a write"
    RETURNED = "after the last write, before COMMIT"
    UNANSWERED = "COMMIT sent, its answer lost"
    COMMITTED = "after COMMIT, before anything else"
    ACKNOWLEDGING = "before the acknowledgement"
    LOST = "acknowledgement lost on its way"
    ACKNOWLEDGED = "after the acknowledgement"

    @property
    def kills(self) -> bool:
        """Here the process dies; at the others it lives on with what it does not know."""
        return self not in (Point.NONE, Point.UNANSWERED, Point.LOST)


class Striker:
    """Strikes at one point, once for each consumer; says so, and stops for good where the process is to be killed."""

    def __init__(self, point: Point, say: Callable[[str], None]) -> None:
        self.point = point
        self.say = say
        self._struck: set[str] = set()
        self._lock = threading.Lock()

    def at(self, point: Point, consumer: str) -> bool:
        """Whether it strikes here and now; returns only where the process lives on."""
        with self._lock:
            if point is not self.point or consumer in self._struck:
                return False
            self._struck.add(consumer)
        self.say(f"struck {consumer}")
        if point.kills:
            threading.Event().wait()
        return True


class StruckSource:
    """A consumer's source, watched."""

    def __init__(self, source: Source, consumer: str, striker: Striker) -> None:
        self._source = source
        self._consumer = consumer
        self._striker = striker

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        received = self._source.receive(limit, wait)
        for _ in received:
            self._striker.say(f"received {self._consumer}")
            self._striker.at(Point.RECEIVED, self._consumer)
        return received

    def acknowledge(self, delivery: Delivery) -> bool:
        self._striker.at(Point.ACKNOWLEDGING, self._consumer)
        if self._striker.at(Point.LOST, self._consumer):
            return False
        confirmed = self._source.acknowledge(delivery)
        if confirmed:
            self._striker.say(f"acknowledged {self._consumer}")
            self._striker.at(Point.ACKNOWLEDGED, self._consumer)
        return confirmed

    def later(self, delivery: Delivery, delay: float) -> bool:
        return self._source.later(delivery, delay)

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        return self._source.renew(delivery, invisible)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        self._striker.say(f"buried {self._consumer} {reason}")
        return self._source.bury(delivery, reason)

    def close(self) -> None:
        self._source.close()


def strike_databases(striker: Striker, consumers: Iterable[str]) -> None:
    """Watches all engines of this process: the transactions that write an effect are where it strikes."""
    known = frozenset(consumers)

    def before(connection: sa.Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith(_EFFECT):
            connection.info[_HOLDS] = _consumer_in(parameters, known)
            striker.at(Point.CLAIMED, connection.info[_HOLDS])

    def after(connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(_EFFECT):
            striker.at(Point.WRITTEN, connection.info[_HOLDS])

    def committing(connection: sa.Connection) -> None:
        if consumer := connection.info.get(_HOLDS):
            striker.at(Point.RETURNED, consumer)

    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "after_cursor_execute", after)
    event.listen(Engine, "commit", committing)
    event.listen(Engine, "rollback", lambda connection: connection.info.pop(_HOLDS, None))
    _strike_commits(striker)


def _strike_commits(striker: Striker) -> None:
    commit: Any = DefaultDialect.do_commit

    def do_commit(dialect: DefaultDialect, connection: Any) -> None:
        consumer = connection.info.pop(_HOLDS, None)
        if consumer and striker.at(Point.UNANSWERED, consumer):
            lose_the_answer(connection.driver_connection)
        commit(dialect, connection)
        if consumer:
            striker.at(Point.COMMITTED, consumer)

    DefaultDialect.do_commit = do_commit  # type: ignore[method-assign]


def _consumer_in(parameters: Any, known: frozenset[str]) -> str:
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    texts = [value.decode() if isinstance(value, bytes) else value for value in values]
    return next(text for text in texts if text in known)


def lose_the_answer(driver: Any) -> None:
    """Writes COMMIT and ends the connection before its answer is read; raises as the driver does then."""
    libpq: Any = getattr(driver, "pgconn", None)
    if libpq is not None:
        libpq.send_query(b"COMMIT")
        libpq.flush()
        with socket.socket(fileno=os.dup(libpq.socket)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
        libpq.consume_input()
    else:
        driver._execute_command(_QUERY, "COMMIT")
        driver._sock.shutdown(socket.SHUT_RDWR)
        driver._read_ok_packet()
