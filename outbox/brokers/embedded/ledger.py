"""The auditing port on the embedded broker's file."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from outbox.brokers.embedded.checks import system_properties
from outbox.brokers.embedded.halves import created_at
from outbox.brokers.embedded.storefile import StoreFile, Unavailable
from outbox.brokers.embedded.timing import LIKE_ROCKETMQ, BrokerTiming, Clock
from outbox.brokers.ledger import CannotTell, Copies, Seen, Wanted

#: Messages of one transaction, and rows that one look through the file serves: keys have no index.
_PAGE: Final = 500
_SELECT: Final = """SELECT entry.id, message.topic, message.unique_id, message.keys, message.tag, message.properties,
                           message.stored_at
                    FROM entry JOIN message ON message.id = entry.message_id AND message.topic = entry.topic"""


class EmbeddedLedger:
    """See ``outbox.brokers.ledger.Ledger``."""

    def __init__(
        self, path: str | os.PathLike[str], settings: BrokerTiming = LIKE_ROCKETMQ, clock: Clock = time.time
    ) -> None:
        self._file = StoreFile(path, settings, clock)

    def knows(self, topic: str) -> bool:  # noqa: ARG002 -- the port's signature
        """Topics come to be by sending, so every one is known."""
        return True

    def exists(self, topic: str) -> bool:
        """Whether a message of it is visible."""
        with self._reading() as connection:
            return connection.execute("SELECT 1 FROM entry WHERE topic = ? LIMIT 1", (topic,)).fetchone() is not None

    def oldest(self, topic: str) -> datetime | None:  # noqa: ARG002
        """The file's creation, or the retention's edge."""
        with self._reading() as connection:
            return _moment(max(created_at(connection), self._file.clock() - self._file.timing.retention))

    def copies(self, wanted: Sequence[Wanted]) -> list[Copies]:
        """Looks through the file once for each page of ``wanted``."""
        found: list[Copies] = []
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            seen = self._with_ids_or_keys(page)
            found += [Copies([it for it in seen if _is_wanted(it, one)], complete=True) for one in page]
        return found

    def messages(self, topic: str, since: datetime, until: datetime) -> Iterator[Seen]:
        """In the order in which they became visible."""
        where = "WHERE entry.topic = ? AND entry.id > ? AND message.stored_at >= ? AND message.stored_at < ?"
        last = 0
        while True:
            values = (topic, last, since.timestamp(), until.timestamp(), _PAGE)
            with self._reading() as connection:
                rows = connection.execute(f"{_SELECT} {where} ORDER BY entry.id LIMIT ?", values).fetchall()
            if not rows:
                return
            yield from (_seen(*row) for row in rows)
            last = rows[-1][0]

    def close(self) -> None:
        """Frees the file."""
        self._file.close()

    def _with_ids_or_keys(self, page: Sequence[Wanted]) -> list[Seen]:
        ids = [one.unique_id for one in page if one.unique_id is not None]
        keys = [one.key for one in page]
        where = f"WHERE message.unique_id IN ({_marks(ids)}) OR message.keys IN ({_marks(keys)})"
        with self._reading() as connection:
            return [_seen(*row) for row in connection.execute(f"{_SELECT} {where} ORDER BY entry.id", (*ids, *keys))]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._file.reading() as connection:
                yield connection
        except Unavailable as error:
            raise CannotTell(f"{error}; see whether the broker's file is there and readable") from error


def _is_wanted(seen: Seen, one: Wanted) -> bool:
    return seen.topic == one.topic and (seen.unique_id == one.unique_id or seen.key == one.key)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _seen(entry_id: int, topic: str, unique_id: str, keys: str, tag: str | None, own: str, stored_at: float) -> Seen:
    properties: dict[str, Any] = json.loads(own) | system_properties(unique_id, keys, tag)
    return Seen(topic, unique_id, keys, properties, _moment(stored_at), f"entry {entry_id}")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
