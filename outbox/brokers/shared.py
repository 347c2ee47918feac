"""One connection to a broker for several databases of a process: a check goes to the database that its half is from."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from outbox.brokers.base import (
    ORIGIN,
    Answer,
    Broker,
    Capabilities,
    Check,
    Ended,
    Ending,
    OnCheck,
    Outgoing,
    Prepared,
    Publication,
    Sought,
)
from outbox.clock import monotonic
from outbox.errors import SettingsError
from outbox.lifecycle import Verdict
from outbox.verdict import Sighting

_log = logging.getLogger(__name__)

#: Seconds for writing "unknown" to a check that is nobody's here, or comes while its database hangs.
_UNKNOWN_WITHIN = 3.0
#: Seconds for one answer after which a database counts as one that hangs.
_SLOW = 3.0


@dataclass(frozen=True, slots=True)
class _Subscription:
    topics: frozenset[str]
    groups: frozenset[str]
    on_check: OnCheck


class _Turns:
    """The checks of one database that are being answered. Thread-safe.

    The transport has a few threads for the checks of all: while a database is slow it gets one of them, no more.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[object, float] = {}
        self._slow = False
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Whether this check may be answered now."""
        with self._lock:
            began, turn = self._now(), object()
            slow = self._slow or any(began - since > _SLOW for since in self._since.values())
            free = not (slow and self._since)
            if free:
                self._since[turn] = began
        try:
            yield free
        finally:
            with self._lock:
                if free:
                    self._slow = self._now() - self._since.pop(turn) > _SLOW


class SharedBroker:
    """The connection, and who listens on it, by origin; safe to use from several threads."""

    def __init__(self, broker: Broker, now: Callable[[], float] = monotonic) -> None:
        self.broker = broker
        self._now = now
        self._turns: dict[str, _Turns] = {}
        self._served: set[str] = set()
        self._listening: dict[str, _Subscription] = {}
        self._lock = threading.Lock()

    def of(self, origin: str) -> "DatabaseBroker":
        """The broker as the database of this origin uses it, until it is closed. ``SettingsError``: it is in use.

        Two databases of one origin would answer each other's checks, from rows that are about something else.
        """
        with self._lock:
            if origin in self._served:
                raise SettingsError(
                    f"databases: {origin} is served already: list each once; a copied database gets an identity of its "
                    "own by `outbox db adopt`"
                )
            self._served.add(origin)
            self._turns[origin] = _Turns(self._now)
        return DatabaseBroker(self, origin)

    def listen(self, origin: str, subscription: _Subscription) -> None:
        """Adds a listener, or replaces that of the same origin; topics and groups of all are registered together."""
        with self._lock:
            self._listening[origin] = subscription
            every = list(self._listening.values())
            topics = frozenset().union(*(it.topics for it in every))
            groups = frozenset().union(*(it.groups for it in every))
            self.broker.listen(topics, self._on_check, groups)

    def leave(self, origin: str) -> None:
        """The listener answers no more; what it was registered for stays so until the connection ends."""
        with self._lock:
            self._served.discard(origin)
            self._listening.pop(origin, None)

    def _on_check(self, check: Check, answer: Answer) -> None:
        """A half whose database is not served here at the moment stays open: another process may serve it. So does
        one whose database hangs: the checks of the others must not wait for it."""
        origin = check.properties.get(ORIGIN, "")
        subscription = self._listening.get(origin)
        if subscription is None:
            _leave_open(check, answer, "foreign")
            return
        with self._turns[origin].taken() as free:
            if free:
                subscription.on_check(check, answer)
            else:
                _leave_open(check, answer, "its database is slow")


def _leave_open(check: Check, answer: Answer, why: str) -> None:
    _log.info("checked half=%s times=%d %s", check.half.half_id, check.times, why)
    answer(Verdict.UNKNOWN, monotonic() + _UNKNOWN_WITHIN)


class DatabaseBroker:
    """See ``outbox.brokers.base.Broker``; ``close`` ends this database's part alone."""

    def __init__(self, shared: SharedBroker, origin: str) -> None:
        self._shared = shared
        self._origin = origin

    @property
    def capabilities(self) -> Capabilities:
        """Those of the transport."""
        return self._shared.broker.capabilities

    @property
    def group(self) -> str:
        """The producer group that the databases share."""
        return self._shared.broker.group

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """As the transport."""
        return self._shared.broker.prepare(messages, timeout)

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """As the transport."""
        return self._shared.broker.resolve(endings, until)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """As the transport."""
        return self._shared.broker.send(messages, timeout)

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """As the transport."""
        return self._shared.broker.find(sought, until)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        """Answers checks about halves of this origin, beside the other databases' listeners."""
        self._shared.listen(self._origin, _Subscription(frozenset(topics), frozenset(groups), on_check))

    def reachable(self, timeout: float) -> bool:
        """As the transport."""
        return self._shared.broker.reachable(timeout)

    def checks_ready(self) -> bool:
        """As the transport."""
        return self._shared.broker.checks_ready()

    def close(self) -> None:
        """Answers no more checks; the connection goes on for the others."""
        self._shared.leave(self._origin)
