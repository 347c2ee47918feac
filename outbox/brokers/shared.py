"""One connection to a broker for several databases of a process: a check goes to the database that its half is from."""

import logging
import threading
from collections.abc import Collection, Sequence
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

#: Seconds for writing "unknown" to a check that is nobody's here.
_UNKNOWN_WITHIN = 3.0


@dataclass(frozen=True, slots=True)
class _Subscription:
    topics: frozenset[str]
    groups: frozenset[str]
    on_check: OnCheck


class SharedBroker:
    """The connection, and who listens on it, by origin; safe to use from several threads."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
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
        """A half whose database is not served here at the moment stays open: another process may serve it."""
        subscription = self._listening.get(check.properties.get(ORIGIN, ""))
        if subscription is not None:
            subscription.on_check(check, answer)
            return
        _log.info("checked half=%s times=%d foreign", check.half.half_id, check.times)
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
