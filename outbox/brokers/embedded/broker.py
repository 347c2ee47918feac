"""The embedded broker behind the port: sends, endings, look-ups, checks."""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from outbox.brokers.base import (
    BrokerClosed,
    Capabilities,
    Ended,
    Ending,
    Half,
    OnCheck,
    Outage,
    Outgoing,
    Prepared,
    Publication,
    Refused,
    Sent,
    Sought,
    Stored,
    Unknown,
    refuse_unknown,
)
from outbox.brokers.embedded import halves
from outbox.brokers.embedded.checks import tick
from outbox.brokers.embedded.limits import refusal
from outbox.brokers.embedded.listener import Listener
from outbox.brokers.embedded.storefile import CommitUnknown, StoreFile, Unavailable
from outbox.brokers.embedded.timing import LIKE_ROCKETMQ, BrokerTiming, Clock
from outbox.clock import monotonic
from outbox.verdict import Confirmation, Sighting

log = logging.getLogger(__name__)

CAPABILITIES: Final = Capabilities(confirms=True, finds=True, ends_by_handle=True, check_scope="group")

_Accepted = TypeVar("_Accepted")


class EmbeddedBroker:
    """A producer group's connection to the broker in a file; safe across threads, forks and processes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str,
        settings: BrokerTiming = LIKE_ROCKETMQ,
        clock: Clock = time.time,
    ) -> None:
        if not group:
            raise ValueError("group: empty; name the producer group")
        self._group = group
        self._file = StoreFile(path, settings, clock)
        self._listener: Listener | None = None
        self._closed = False
        log.warning("%s: the embedded broker, for first runs and tests; use a real RocketMQ for all else", path)

    @property
    def capabilities(self) -> Capabilities:
        """All that the port knows."""
        return CAPABILITIES

    @property
    def group(self) -> str:
        """The producer group of new halves."""
        return self._group

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """Stores halves, all in one transaction."""

        def append(connection: sqlite3.Connection, good: Sequence[Outgoing]) -> list[Stored]:
            return [Stored(half) for half in halves.append_halves(connection, good, self._group, self._file.clock())]

        return self._append(messages, timeout, append)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """Stores plain messages, all in one transaction."""

        def append(connection: sqlite3.Connection, good: Sequence[Outgoing]) -> list[Sent]:
            return [Sent(unique_id) for unique_id in halves.append_plain(connection, good, self._file.clock())]

        return self._append(messages, timeout, append)

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Ends halves, all in one transaction that is complete before ``until`` or not written."""
        self._expect_open()
        refuse_unknown(endings)
        return self._end(endings, until)

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """Looks the unique ids up; ABSENT only from the store that holds the half, if it is older than the decision."""
        if monotonic() >= until:
            return [Sighting.CANNOT_TELL] * len(sought)
        try:
            self._expect_open()
            with self._file.reading() as connection:
                found = [self._look_up(connection, it.half, it.since.timestamp()) for it in sought]
        except (Unavailable, BrokerClosed) as error:
            log.warning("%d halves cannot be looked up: %s", len(sought), error)
            return [Sighting.CANNOT_TELL] * len(sought)
        if elsewhere := found.count(Sighting.CANNOT_TELL):
            log.warning("look-up of %d halves cannot tell: %s was not their broker", elsewhere, self._file.path)
        return found

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:  # noqa: ARG002
        """Answers checks of ``group`` and ``groups`` from now on, whatever the topic, as a RocketMQ producer does."""
        self._expect_open()
        self._stop_listening()
        self._listener = Listener(self._file, {self._group, *groups}, on_check, self._end_one)

    def reachable(self, timeout: float) -> bool:  # noqa: ARG002 -- the file has a time-out of its own
        """Whether the file can be read; see ``Broker.reachable``."""
        try:
            with self._file.reading():
                return not self._closed
        except Unavailable as error:
            log.debug("not reachable: %s", error)
            return False

    def checks_ready(self) -> bool:
        """Whether the registration is in the file and fresh."""
        return self._listener is not None and self._listener.ready()

    def close(self) -> None:
        """Stops answering checks and frees the file; endings that come after are not written."""
        self._closed = True
        self._stop_listening()
        self._file.close()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    def _append(
        self,
        messages: Sequence[Outgoing],
        timeout: float,
        append: Callable[[sqlite3.Connection, Sequence[Outgoing]], Sequence[_Accepted]],
    ) -> list[_Accepted | Refused | Unknown | Outage]:
        self._expect_open()
        refusals = [refusal(message) for message in messages]
        good = [message for message, reason in zip(messages, refusals, strict=True) if reason is None]
        outcomes = iter(self._append_good(good, monotonic() + timeout, append))
        return [next(outcomes) if reason is None else Refused(reason) for reason in refusals]

    def _append_good(
        self,
        good: Sequence[Outgoing],
        until: float,
        append: Callable[[sqlite3.Connection, Sequence[Outgoing]], Sequence[_Accepted]],
    ) -> Sequence[_Accepted | Unknown | Outage]:
        if not good:
            return []
        try:
            tick(self._file, until)
            with self._file.writing(until) as connection:
                self._expect_unclosed()
                return append(connection, good)
        except CommitUnknown as error:
            return [Unknown(str(error))] * len(good)
        except Unavailable as error:
            return [Outage(str(error))] * len(good)

    def _end_one(self, ending: Ending, until: float) -> Ended:
        (ended,) = self._end([ending], until)
        return ended

    def _end(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        try:
            if not endings:
                return []
            tick(self._file, until)
            with self._file.writing(until) as connection:
                self._expect_unclosed()
                return halves.end(connection, endings)
        except Unavailable as error:
            return [Ended(Confirmation.UNANSWERED, str(error))] * len(endings)

    def _expect_unclosed(self) -> None:
        """A call that was under way when ``close`` came writes nothing."""
        if self._closed:
            raise Unavailable(f"group {self._group!r}: closed before this was written; open a new connection")

    def _look_up(self, connection: sqlite3.Connection, half: Half, since: float) -> Sighting:
        if halves.is_visible(connection, half):
            return Sighting.VISIBLE
        oldest = max(halves.created_at(connection), self._file.clock() - self._file.timing.retention)
        if oldest >= since:
            return Sighting.EXPIRED
        return Sighting.ABSENT if halves.holds(connection, half) else Sighting.CANNOT_TELL

    def _expect_open(self) -> None:
        if self._closed:
            raise BrokerClosed(f"group {self._group!r}: the connection is closed; open a new one")
