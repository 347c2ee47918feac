"""The consumer side: what a group has seen, what it holds, and what comes again."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from outbox.brokers.embedded.halves import append_entries
from outbox.brokers.embedded.schema import DEAD_LETTER_PREFIX
from outbox.identity import fresh_token


@dataclass(frozen=True, slots=True)
class Taken:
    """An entry that was just given to a member of a group."""

    entry_id: int
    attempt: int
    receipt: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member says it holds; it holds it as long as the receipt is the last one and its time is not over."""

    group: str
    entry_id: int
    receipt: str
    now: float

    def where(self) -> tuple[str, int, str, float]:
        """The parameters of ``_HELD``."""
        return self.group, self.entry_id, self.receipt, self.now


_HELD = "consumer_group = ? AND entry_id = ? AND receipt = ? AND visible_at > ?"


def has_work(connection: sqlite3.Connection, group: str, topics: Sequence[str], now: float) -> bool:
    """Whether ``take`` would find anything."""
    due = "SELECT 1 FROM delivery WHERE consumer_group = ? AND topic = ? AND visible_at <= ? LIMIT 1"
    new = "SELECT 1 FROM entry WHERE topic = ? AND id >= ? LIMIT 1"
    return any(
        connection.execute(due, (group, topic, now)).fetchone()
        or connection.execute(new, (topic, next_entry(connection, group, topic))).fetchone()
        for topic in topics
    )


def take(
    connection: sqlite3.Connection, group: str, topics: Sequence[str], limit: int, now: float, visible_at: float
) -> list[Taken]:
    """Gives up to ``limit`` entries to a member until ``visible_at``: those that are due again first, then new ones."""
    taken: list[Taken] = []
    for topic in topics:
        taken += _take_due(connection, group, topic, limit - len(taken), now, visible_at)
    for topic in topics:
        taken += _take_new(connection, group, topic, limit - len(taken), visible_at)
    return taken


def acknowledge(connection: sqlite3.Connection, holding: Holding) -> bool:
    """Takes the entry off the group's queue; False if the member does not hold it."""
    return connection.execute(f"DELETE FROM delivery WHERE {_HELD}", holding.where()).rowcount == 1  # noqa: S608


def extend(connection: sqlite3.Connection, holding: Holding, visible_at: float) -> str | None:
    """Moves the time at which the entry comes again; the new receipt, or None if the member does not hold it."""
    receipt = fresh_token()
    update = f"UPDATE delivery SET visible_at = ?, receipt = ? WHERE {_HELD}"  # noqa: S608
    return receipt if connection.execute(update, (visible_at, receipt, *holding.where())).rowcount == 1 else None


def bury(connection: sqlite3.Connection, holding: Holding, reason: str) -> bool:
    """Moves the entry to the group's dead-letter topic; False if the member does not hold it."""
    if not acknowledge(connection, holding):
        return False
    append_dead_letter(connection, holding.group, holding.entry_id, reason)
    return True


def bury_exhausted(connection: sqlite3.Connection, group: str, now: float, max_retries: int) -> None:
    """Moves entries whose last attempt has failed to the group's dead-letter topic."""
    where = "consumer_group = ? AND attempt > ? AND visible_at <= ?"
    rows = connection.execute(f"SELECT entry_id FROM delivery WHERE {where}", (group, max_retries, now))  # noqa: S608
    for (entry_id,) in rows.fetchall():
        connection.execute("DELETE FROM delivery WHERE consumer_group = ? AND entry_id = ?", (group, entry_id))
        append_dead_letter(connection, group, entry_id, f"{max_retries} retries have failed")


def append_dead_letter(connection: sqlite3.Connection, group: str, entry_id: int, reason: str) -> None:
    """Appends the message of an entry to the group's dead-letter topic, with where it came from and why."""
    row = connection.execute("SELECT topic, message_id, extra FROM entry WHERE id = ?", (entry_id,)).fetchone()
    if row is None:  # retention was faster
        return
    topic, message_id, extra = row
    origin = {"DLQ_ORIGIN_TOPIC": topic, "outbox-dead-letter-reason": reason}
    append_entries(connection, [(DEAD_LETTER_PREFIX + group, 0, message_id)], json.loads(extra) | origin)


def next_entry(connection: sqlite3.Connection, group: str, topic: str) -> int:
    """The first entry that the group has not seen; a new one starts at the beginning of the topic."""
    select = "SELECT next_entry FROM progress WHERE consumer_group = ? AND topic = ?"
    row = connection.execute(select, (group, topic)).fetchone()
    return 0 if row is None else int(row[0])


def _take_due(
    connection: sqlite3.Connection, group: str, topic: str, limit: int, now: float, visible_at: float
) -> list[Taken]:
    select = """SELECT entry_id, attempt FROM delivery WHERE consumer_group = ? AND topic = ? AND visible_at <= ?
                ORDER BY visible_at, entry_id LIMIT ?"""
    rows = connection.execute(select, (group, topic, now, limit)).fetchall()
    taken = [Taken(entry_id, attempt + 1, fresh_token()) for entry_id, attempt in rows]
    update = """UPDATE delivery SET attempt = ?, visible_at = ?, receipt = ?
                WHERE consumer_group = ? AND entry_id = ?"""
    connection.executemany(update, [(t.attempt, visible_at, t.receipt, group, t.entry_id) for t in taken])
    return taken


def _take_new(connection: sqlite3.Connection, group: str, topic: str, limit: int, visible_at: float) -> list[Taken]:
    """A watermark is safe here: entries get their ids under the file's one write lock, in the order of commits."""
    select = "SELECT id FROM entry WHERE topic = ? AND id >= ? ORDER BY id LIMIT ?"
    rows = connection.execute(select, (topic, next_entry(connection, group, topic), limit)).fetchall()
    taken = [Taken(entry_id, 1, fresh_token()) for (entry_id,) in rows]
    insert = "INSERT INTO delivery VALUES (?, ?, ?, ?, ?, ?)"
    connection.executemany(insert, [(group, t.entry_id, topic, t.attempt, visible_at, t.receipt) for t in taken])
    if taken:
        connection.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (group, topic, taken[-1].entry_id + 1))
    return taken
