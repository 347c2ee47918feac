"""What an operator, a demo or a test can see of the embedded broker, past all groups."""

import json
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from outbox.brokers.embedded.checks import system_properties, tick
from outbox.brokers.embedded.schema import DEAD_LETTER_PREFIX, DISCARD_TOPIC, OPEN
from outbox.brokers.embedded.storefile import StoreFile
from outbox.brokers.embedded.timing import LIKE_ROCKETMQ, BrokerTiming, Clock
from outbox.clock import monotonic


@dataclass(frozen=True, slots=True)
class VisibleMessage:
    """A message as it lies in a queue."""

    topic: str
    queue: int
    unique_id: str
    key: str
    tag: str | None
    properties: Mapping[str, str]
    body: bytes
    #: Seconds since 1970.
    stored_at: float


@dataclass(frozen=True, slots=True)
class OpenHalf:
    """A half that waits for its end."""

    topic: str
    half_id: str
    key: str
    group: str
    #: How often the broker has asked about it.
    checks: int


class EmbeddedInspector:
    """Reads the file; every method raises ``Unavailable`` where it cannot. Looking is touching: it ticks."""

    def __init__(
        self, path: str | os.PathLike[str], settings: BrokerTiming = LIKE_ROCKETMQ, clock: Clock = time.time
    ) -> None:
        self._file = StoreFile(path, settings, clock)

    def visible(self, topic: str) -> list[VisibleMessage]:
        """Every message of the topic, repeats included, in the order in which they became visible."""
        with self._reading() as connection:
            ids = connection.execute("SELECT id FROM entry WHERE topic = ? ORDER BY id", (topic,)).fetchall()
            return [read_entry(connection, entry_id) for (entry_id,) in ids]

    def topics(self) -> list[str]:
        """The topics that hold messages, the broker's own among them."""
        with self._reading() as connection:
            return [topic for (topic,) in connection.execute("SELECT DISTINCT topic FROM entry ORDER BY topic")]

    def discarded(self) -> list[VisibleMessage]:
        """Halves that were given up after their last check; their REAL_TOPIC and PGROUP are among the properties."""
        return self.visible(DISCARD_TOPIC)

    def dead_letters(self, group: str) -> list[VisibleMessage]:
        """What the consumer group could not consume."""
        return self.visible(DEAD_LETTER_PREFIX + group)

    def open_halves(self) -> list[OpenHalf]:
        """The halves that wait for their end, oldest position first."""
        select = f"""SELECT message.topic, message.unique_id, message.keys, half.producer_group, half.checks
                     FROM half JOIN message ON message.id = half.message_id
                     WHERE half.fate = {OPEN} ORDER BY half.position"""  # noqa: S608 -- a constant
        with self._reading() as connection:
            return [OpenHalf(*row) for row in connection.execute(select)]

    def backlog(self, group: str, topic: str) -> int:
        """Messages that a consumer group has not acknowledged, whether it has seen them or not."""
        unseen = """SELECT count(*) FROM entry WHERE topic = :topic AND id >= coalesce(
                    (SELECT next_entry FROM progress WHERE consumer_group = :group AND topic = :topic), 0)"""
        held = "SELECT count(*) FROM delivery WHERE consumer_group = :group AND topic = :topic"
        with self._reading() as connection:
            names = {"group": group, "topic": topic}
            return sum(int(connection.execute(query, names).fetchone()[0]) for query in (unseen, held))

    def close(self) -> None:
        """Frees the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        tick(self._file, monotonic() + self._file.timing.busy_timeout)
        return self._file.reading()


def read_entry(connection: sqlite3.Connection, entry_id: int) -> VisibleMessage:
    """One entry with the message that it points to."""
    select = """SELECT entry.topic, entry.queue, entry.extra, message.unique_id, message.keys, message.tag,
                       message.properties, message.body, message.stored_at
                FROM entry JOIN message ON message.id = entry.message_id WHERE entry.id = ?"""
    topic, queue, extra, unique_id, keys, tag, own, body, stored_at = connection.execute(select, (entry_id,)).fetchone()
    properties = json.loads(own) | json.loads(extra) | system_properties(unique_id, keys, tag)
    return VisibleMessage(topic, queue, unique_id, keys, tag, properties, body, stored_at)
