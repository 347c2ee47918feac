"""The embedded broker behind the receiving port."""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from outbox.brokers.base import BrokerClosed
from outbox.brokers.embedded import orderly as lanes
from outbox.brokers.embedded import queues
from outbox.brokers.embedded.checks import tick
from outbox.brokers.embedded.inspect import read_entry
from outbox.brokers.embedded.queues import Holding, Taken
from outbox.brokers.embedded.storefile import StoreFile, Unavailable
from outbox.brokers.embedded.timing import LIKE_ROCKETMQ, BrokerTiming, Clock
from outbox.brokers.source import Delivery
from outbox.clock import monotonic

log = logging.getLogger(__name__)


class EmbeddedSource:
    """One member of a consumer group; any number of members in any process share the group's queue."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str,
        topics: Sequence[str],
        invisible: float = 60.0,
        settings: BrokerTiming = LIKE_ROCKETMQ,
        clock: Clock = time.time,
        *,
        orderly: bool = False,
    ) -> None:
        """``invisible``: seconds that a delivery is ours before it comes again.

        ``orderly``: one delivery of a queue at a time, for all members of the group together, who must all ask for it.
        """
        if not group or not topics:
            raise ValueError("group, topics: empty; name the consumer group and at least one topic")
        self._group = group
        self._topics = tuple(topics)
        self._invisible = invisible
        self._orderly = orderly
        self._view = lanes if orderly else queues
        self._file = StoreFile(path, settings, clock)
        self._closing = threading.Event()

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, waiting up to ``wait`` seconds for the first; raises ``BrokerClosed``."""
        end = monotonic() + wait
        while True:
            if self._closing.is_set():
                raise BrokerClosed(f"group {self._group!r}: the source is closed; open a new one")
            batch = self._take(limit)
            rest = end - monotonic()
            if batch or rest <= 0 or self._closing.wait(min(rest, self._file.timing.poll_interval)):
                return batch

    def acknowledge(self, delivery: Delivery) -> bool:
        """Takes the delivery off the group's queue; False with a receipt that has expired or was renewed."""
        return bool(self._on(delivery, queues.acknowledge))

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Gives the delivery back for ``delay`` seconds; after the last retry it goes to the dead-letter topic."""
        if delivery.attempt > self._file.timing.max_retries:
            return self.bury(delivery, f"{self._file.timing.max_retries} retries have failed")
        return bool(self._on(delivery, lambda tx, held: queues.extend(tx, held, held.now + delay)))

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """Makes the delivery ours for ``invisible`` seconds from now, under a new receipt."""
        until = monotonic() + invisible
        receipt = self._on(delivery, lambda tx, held: queues.extend(tx, held, held.now + invisible))
        if not receipt:
            return None
        return replace(delivery, receipt=_receipt(_entry_id(delivery), str(receipt)), invisible_until=until)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Moves the delivery to the group's dead-letter topic, in one transaction."""
        return bool(self._on(delivery, lambda tx, held: queues.bury(tx, held, reason)))

    def close(self) -> None:
        """Wakes a waiting ``receive`` and frees the file; a second call does nothing."""
        self._closing.set()
        self._file.close()

    def _take(self, limit: int) -> list[Delivery]:
        try:
            tick(self._file, self._limit())
            with self._file.reading() as connection:
                if not self._view.has_work(connection, self._group, self._topics, self._file.clock()):
                    return []
            return self._take_some(limit)
        except Unavailable as error:
            log.warning("group %s: nothing received: %s", self._group, error)
            return []

    def _take_some(self, limit: int) -> list[Delivery]:
        until = monotonic() + self._invisible
        with self._file.writing(self._limit()) as connection:
            now = self._file.clock()
            queues.bury_exhausted(connection, self._group, now, self._file.timing.max_retries)
            taken = self._view.take(connection, self._group, self._topics, limit, now, now + self._invisible)
            return [_delivery(connection, each, until, orderly=self._orderly) for each in taken]

    def _on(
        self, delivery: Delivery, step: Callable[[sqlite3.Connection, Holding], bool | str | None]
    ) -> bool | str | None:
        """Does one thing with a delivery if it is still ours; falsy if not, or if the file cannot be written."""
        receipt = delivery.receipt.rpartition(":")[2]
        try:
            with self._file.writing(self._limit()) as connection:
                return step(connection, Holding(self._group, _entry_id(delivery), receipt, self._file.clock()))
        except Unavailable as error:
            log.warning("message %s: it will come again: %s", delivery.unique_id, error)
            return None

    def _limit(self) -> float:
        return monotonic() + self._file.timing.busy_timeout


def _receipt(entry_id: int, receipt: str) -> str:
    return f"{entry_id}:{receipt}"


def _entry_id(delivery: Delivery) -> int:
    return int(delivery.receipt.rpartition(":")[0])


def _delivery(connection: sqlite3.Connection, taken: Taken, until: float, *, orderly: bool) -> Delivery:
    seen = read_entry(connection, taken.entry_id)
    return Delivery(
        topic=seen.topic,
        body=seen.body,
        unique_id=seen.unique_id,
        keys=tuple(seen.key.split()),
        tag=seen.tag,
        properties=seen.properties,
        attempt=taken.attempt,
        receipt=_receipt(taken.entry_id, taken.receipt),
        invisible_until=until,
        born_at=seen.stored_at,
        lane=f"{seen.topic}/{seen.queue}" if orderly else None,
    )
