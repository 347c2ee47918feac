"""An orderly group's view: each queue of a topic has one entry out at a time, in the queue's order.

Entries line up for the group as they are found, with no attempt yet. The oldest of a queue is its head: while that is
out, or comes again later, nothing behind it is given to anybody.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.brokers.embedded.queues import Taken, next_entry
from outbox.brokers.embedded.schema import QUEUES
from outbox.identity import fresh_token

_LINED_UP: Final = 0


@dataclass(frozen=True, slots=True)
class _Head:
    entry_id: int
    attempt: int
    visible_at: float


def has_work(connection: sqlite3.Connection, group: str, topics: Sequence[str], now: float) -> bool:
    """Whether ``take`` would find or line up anything."""
    new = "SELECT 1 FROM entry WHERE topic = ? AND id >= ? LIMIT 1"
    return any(
        connection.execute(new, (topic, next_entry(connection, group, topic))).fetchone()
        or any(head.visible_at <= now for head in _heads(connection, group, topic))
        for topic in topics
    )


def take(
    connection: sqlite3.Connection, group: str, topics: Sequence[str], limit: int, now: float, visible_at: float
) -> list[Taken]:
    """Gives up to ``limit`` heads that are due to a member until ``visible_at``."""
    for topic in topics:
        _line_up(connection, group, topic)
    heads = [head for topic in topics for head in _heads(connection, group, topic) if head.visible_at <= now]
    taken = [Taken(head.entry_id, head.attempt + 1, fresh_token()) for head in sorted(heads, key=_turn)[:limit]]
    update = """UPDATE delivery SET attempt = ?, visible_at = ?, receipt = ?
                WHERE consumer_group = ? AND entry_id = ?"""
    connection.executemany(update, [(it.attempt, visible_at, it.receipt, group, it.entry_id) for it in taken])
    return taken


def _line_up(connection: sqlite3.Connection, group: str, topic: str) -> None:
    """A watermark is safe here: entries get their ids under the file's one write lock, in the order of commits."""
    first = next_entry(connection, group, topic)
    (last,) = connection.execute("SELECT max(id) FROM entry WHERE topic = ? AND id >= ?", (topic, first)).fetchone()
    if last is None:
        return
    insert = "INSERT INTO delivery SELECT ?, id, topic, ?, 0, '' FROM entry WHERE topic = ? AND id >= ?"
    connection.execute(insert, (group, _LINED_UP, topic, first))
    connection.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (group, topic, last + 1))


def _heads(connection: sqlite3.Connection, group: str, topic: str) -> Iterator[_Head]:
    """The oldest entry of each queue; found along the primary key (a plus keeps SQLite off the other index)."""
    select = """SELECT entry_id, attempt, visible_at FROM delivery CROSS JOIN entry ON entry.id = delivery.entry_id
                WHERE consumer_group = ? AND +delivery.topic = ? AND entry.queue = ? ORDER BY entry_id LIMIT 1"""
    for queue in range(QUEUES):
        row = connection.execute(select, (group, topic, queue)).fetchone()
        if row is not None:
            yield _Head(*row)


def _turn(head: _Head) -> tuple[bool, float, int]:
    """Those that are due again come first, as in an ordinary group."""
    return head.attempt == _LINED_UP, head.visible_at, head.entry_id
