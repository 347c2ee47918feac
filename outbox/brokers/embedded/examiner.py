"""The examining port on the embedded broker's file, in RocketMQ's words."""

import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from outbox.brokers.base import ORIGIN
from outbox.brokers.embedded.halves import BROKER
from outbox.brokers.embedded.inspect import VisibleMessage, read_entry
from outbox.brokers.embedded.schema import DISCARD_TOPIC, QUEUES
from outbox.brokers.embedded.storefile import StoreFile, Unavailable
from outbox.brokers.embedded.timing import LIKE_ROCKETMQ, BrokerTiming, Clock
from outbox.brokers.examiner import Discarded, DiscardTopic, GroupFacts, NotMade, OutOfReach, Runtime, TopicFacts

_READ_WRITE = 6


class EmbeddedExaminer:
    """See ``outbox.brokers.examiner.Examiner``; topics and groups come to be by use, so every one is there."""

    def __init__(
        self, path: str | os.PathLike[str], settings: BrokerTiming = LIKE_ROCKETMQ, clock: Clock = time.time
    ) -> None:
        self._file = StoreFile(path, settings, clock)

    def masters(self) -> Collection[str]:
        """The one that there is. A file that is not there is not made: its name may be mistyped."""
        if not self._file.path.exists():
            raise NotMade(f"{self._file.path}: there is no such file; the first relay makes it")
        with self._reading():
            return (BROKER,)

    def settings(self, broker: str) -> Mapping[str, str]:  # noqa: ARG002 -- the port's signature
        """The times that this process goes by."""
        timing = self._file.timing
        return {
            "transactionTimeOut": f"{timing.transaction_timeout * 1000:.0f}",
            "transactionCheckInterval": f"{timing.check_interval * 1000:.0f}",
            "transactionCheckMax": str(timing.max_checks),
            "fileReservedTime": f"{timing.retention / 3600:g}",
            "messageIndexEnable": "true",
        }

    def runtime(self, broker: str) -> Runtime:  # noqa: ARG002
        """Nothing: it is no process."""
        return Runtime("", None)

    def topic(self, broker: str, topic: str) -> TopicFacts:  # noqa: ARG002
        """As sending would make it."""
        return TopicFacts(None, QUEUES, _READ_WRITE)

    def group(self, broker: str, group: str) -> GroupFacts:  # noqa: ARG002
        """As receiving would make it."""
        return GroupFacts(consumes=True, retries=self._file.timing.max_retries)

    def listeners(self, broker: str, group: str) -> int:  # noqa: ARG002
        """Whose registration has not run out."""
        query = "SELECT count(*) FROM listener WHERE producer_group = ? AND expires_at > ?"
        with self._reading() as connection:
            return int(connection.execute(query, (group, self._file.clock())).fetchone()[0])

    def discarded(self, broker: str, limit: int) -> DiscardTopic:  # noqa: ARG002
        """From the topic's entries."""
        newest = "SELECT id FROM entry WHERE topic = ? ORDER BY id DESC LIMIT ?"
        with self._reading() as connection:
            count = connection.execute("SELECT count(*) FROM entry WHERE topic = ?", (DISCARD_TOPIC,)).fetchone()[0]
            ids = connection.execute(newest, (DISCARD_TOPIC, limit)).fetchall()
            return DiscardTopic(int(count), [_discarded(read_entry(connection, entry_id)) for (entry_id,) in ids])

    def close(self) -> None:
        """Frees the file."""
        self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._file.reading() as connection:
                yield connection
        except Unavailable as error:
            raise OutOfReach(str(error)) from error


def _discarded(message: VisibleMessage) -> Discarded:
    own = message.properties
    stored_at = datetime.fromtimestamp(message.stored_at, UTC)
    return Discarded(message.unique_id, message.key, own.get("REAL_TOPIC", ""), own.get(ORIGIN, ""), stored_at)
