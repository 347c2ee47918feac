"""Storing halves and plain messages, and ending halves: one transaction for a whole batch."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

from outbox.brokers.base import SHARDING_KEY, Ended, Ending, Half, Outgoing
from outbox.brokers.embedded.schema import ENDED, OPEN, QUEUES
from outbox.brokers.embedded.timers import placed
from outbox.lifecycle import Verdict
from outbox.timer import is_timed
from outbox.verdict import Confirmation

#: The name of the one broker of the cluster.
BROKER: Final = "embedded"

#: Producer group, topic, queue, message id, properties.
_Stored = tuple[str, str, int, int, str]


def reserve(connection: sqlite3.Connection, count: int) -> range:
    """The next ``count`` positions of the log; never given out again."""
    update = "UPDATE store SET next_position = next_position + ? RETURNING next_position"
    (end,) = connection.execute(update, (count,)).fetchone()
    return range(end - count, end)


def store_id(connection: sqlite3.Connection) -> str:
    """The identity of this file, drawn when it was created."""
    (identity,) = connection.execute("SELECT store_id FROM store").fetchone()
    return str(identity)


def append_halves(connection: sqlite3.Connection, messages: Sequence[Outgoing], group: str, now: float) -> list[Half]:
    """Stores messages that nobody sees before their halves are committed."""
    positions = _append_messages(connection, messages, now)
    rows = [(position, position, group, now, 0, OPEN) for position in positions]
    connection.executemany("INSERT INTO half VALUES (?, ?, ?, ?, ?, ?)", rows)
    identity = store_id(connection)
    return [
        Half(message.topic, message.unique_id, BROKER, handle(identity, position), group)
        for message, position in zip(messages, positions, strict=True)
    ]


def append_plain(connection: sqlite3.Connection, messages: Sequence[Outgoing], now: float) -> list[str]:
    """Stores messages that are visible at once, or when their timer says; their unique ids."""
    positions = _append_messages(connection, messages, now)
    rows = [(message.topic, _queue_of(message), id_) for message, id_ in zip(messages, positions, strict=True)]
    append_entries(connection, placed(messages, rows, now))
    return [message.unique_id for message in messages]


def append_entries(
    connection: sqlite3.Connection, rows: Sequence[tuple[str, int, int]], extra: Mapping[str, str] | None = None
) -> None:
    """Makes messages visible: (topic, queue, message id); ``extra`` properties are added to their own."""
    positions = reserve(connection, len(rows))
    added = json.dumps(extra or {}, ensure_ascii=False)
    entries = [(position, *row, added) for position, row in zip(positions, rows, strict=True)]
    connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", entries)


def handle(identity: str, position: int) -> str:
    """The words by which a half is ended later: which file, and where in it."""
    return f"{identity}:{position}"


def end(connection: sqlite3.Connection, endings: Sequence[Ending]) -> list[Ended]:
    """Ends halves. The broker keeps no final state: COMMIT makes a visible message each time, also after ROLLBACK.

    A half with a timer is committed and never delivered.
    """
    identity = store_id(connection)
    ended: list[Ended] = []
    visible: list[tuple[str, int, int]] = []
    positions: list[tuple[int, int]] = []
    for ending in endings:
        position = _position(ending.half.handle, identity)
        row = _half_at(connection, position)
        answer = _answer(row, ending.half)
        ended.append(answer)
        if row is None or answer.confirmation is not Confirmation.CONFIRMED:
            continue
        positions.append((ENDED, position))
        if ending.verdict is Verdict.COMMIT and not is_timed(json.loads(row[4])):
            visible.append((row[1], row[2], row[3]))
    append_entries(connection, visible)
    connection.executemany("UPDATE half SET fate = ? WHERE position = ?", positions)
    return ended


def _append_messages(connection: sqlite3.Connection, messages: Sequence[Outgoing], now: float) -> range:
    positions = reserve(connection, len(messages))
    rows = [
        (
            position,
            message.topic,
            _queue_of(message),
            message.unique_id,
            message.key,
            message.tag,
            json.dumps(_properties_of(message), ensure_ascii=False),
            message.body,
            now,
        )
        for position, message in zip(positions, messages, strict=True)
    ]
    connection.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return positions


def _properties_of(message: Outgoing) -> dict[str, str]:
    return {**message.properties} | ({} if message.lane is None else {SHARDING_KEY: message.lane})


def _queue_of(message: Outgoing) -> int:
    return crc32((message.lane or message.unique_id).encode(errors="surrogatepass")) % QUEUES


def _position(words: str, identity: str) -> int:
    """The position that a handle names; -1, where nothing is, for words of another file."""
    prefix, _, number = words.rpartition(":")
    return int(number) if prefix == identity and number.isdecimal() else -1


def _half_at(connection: sqlite3.Connection, position: int) -> _Stored | None:
    select = """SELECT half.producer_group, message.topic, message.queue, message.id, message.properties
                FROM half JOIN message ON message.id = half.message_id WHERE half.position = ?"""
    row: _Stored | None = connection.execute(select, (position,)).fetchone()
    return row


def _answer(row: _Stored | None, half: Half) -> Ended:
    if row is None:
        return Ended(Confirmation.GONE, f"half {half.half_id}: nothing is stored at {half.handle}")
    if row[0] != half.group:
        return Ended(Confirmation.DENIED, f"half {half.half_id}: producer group {half.group!r} is wrong")
    return Ended(Confirmation.CONFIRMED)


def is_visible(connection: sqlite3.Connection, half: Half) -> bool:
    """Whether the topic holds a message with the half's unique id."""
    select = """SELECT 1 FROM message JOIN entry ON entry.message_id = message.id AND entry.topic = message.topic
                WHERE message.unique_id = ? AND message.topic = ? LIMIT 1"""
    return connection.execute(select, (half.half_id, half.topic)).fetchone() is not None


def holds(connection: sqlite3.Connection, half: Half) -> bool:
    """Whether the half was stored in this very file, and not in one that it replaced."""
    return half.broker == BROKER and half.handle.startswith(f"{store_id(connection)}:")


def created_at(connection: sqlite3.Connection) -> float:
    """When the file was created, by the clock of its creator."""
    (created,) = connection.execute("SELECT created_at FROM store").fetchone()
    return float(created)
