"""Rounds of checks: which halves the broker asks about, whom it asks, and when it gives up."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from outbox.brokers.base import Check, Half
from outbox.brokers.embedded.halves import BROKER, append_entries, handle, reserve, store_id
from outbox.brokers.embedded.schema import DISCARD_TOPIC, DISCARDED, OPEN, SUPERSEDED
from outbox.brokers.embedded.storefile import StoreFile
from outbox.brokers.embedded.timers import is_due, take_due
from outbox.brokers.embedded.timing import BrokerTiming

#: Messages that one round deletes at most, so that no call waits long for it.
_RETENTION_BATCH: Final = 10_000

#: Oldest first; entries and open halves can be younger than the message that they point to.
_EXPIRE: Final = (
    "DELETE FROM half WHERE position <= :horizon",
    f"DELETE FROM half WHERE fate = {OPEN} AND message_id <= :horizon",  # noqa: S608 -- a constant
    "DELETE FROM delivery WHERE entry_id IN (SELECT id FROM entry WHERE message_id <= :horizon)",
    "DELETE FROM entry WHERE message_id <= :horizon",
    "DELETE FROM message WHERE id <= :horizon",
)

#: position, message id, producer group, born at, checks so far
_Waiting = tuple[int, int, str, float, int]


def tick(file: StoreFile, until: float) -> None:
    """Does the broker's housekeeping if a round or a timer is due; raises ``Unavailable``.

    Rounds that nobody was there for are not made up: a file that nobody touches is a broker that is down.
    """
    with file.reading() as connection:
        now = file.clock()
        if not _round_is_due(connection, now, file.timing) and not is_due(connection, now):
            return
    with file.writing(until) as connection:
        now = file.clock()
        append_entries(connection, take_due(connection, now))
        if _round_is_due(connection, now, file.timing):
            run_round(connection, now, file.timing)


def run_round(connection: sqlite3.Connection, now: float, timing: BrokerTiming) -> None:
    """Asks about each half that is old enough, or discards it after its last check."""
    connection.execute("UPDATE store SET last_round_at = ?", (now,))
    connection.execute("DELETE FROM listener WHERE expires_at <= ?", (now,))
    waiting = _waiting(connection, now - timing.transaction_timeout)
    _discard(connection, [half for half in waiting if half[4] >= timing.max_checks])
    _ask(connection, [half for half in waiting if half[4] < timing.max_checks])
    _expire(connection, now - timing.retention)


def register(connection: sqlite3.Connection, listener: str, groups: Collection[str], expires_at: float) -> None:
    """A listener's heartbeat: it answers for these groups, and no others, until it expires."""
    unregister(connection, listener)
    rows = [(listener, group, expires_at) for group in groups]
    connection.executemany("INSERT INTO listener VALUES (?, ?, ?)", rows)


def unregister(connection: sqlite3.Connection, listener: str) -> None:
    """The listener leaves; checks on their way to it are asked again in the next round."""
    connection.execute("DELETE FROM listener WHERE id = ?", (listener,))


def has_questions(connection: sqlite3.Connection, listener: str) -> bool:
    """Whether checks wait for the listener."""
    return connection.execute("SELECT 1 FROM question WHERE listener = ? LIMIT 1", (listener,)).fetchone() is not None


def take_questions(connection: sqlite3.Connection, listener: str) -> list[Check]:
    """The checks that wait for the listener, taken off the list: a listener that dies now is not asked again soon."""
    select = """SELECT half.position, half.producer_group, half.checks, message.topic, message.unique_id, message.keys,
                       message.tag, message.properties
                FROM question JOIN half USING (position) JOIN message ON message.id = half.message_id
                WHERE question.listener = ? ORDER BY half.position"""
    rows = connection.execute(select, (listener,)).fetchall()
    connection.execute("DELETE FROM question WHERE listener = ?", (listener,))
    identity = store_id(connection)
    return [_check(identity, *row) for row in rows]


def system_properties(unique_id: str, keys: str, tag: str | None) -> dict[str, str]:
    """The properties that carry a message's own fields (``MessageConst``)."""
    return {"UNIQ_KEY": unique_id, "KEYS": keys} | ({} if tag is None else {"TAGS": tag})


def _check(
    identity: str,
    position: int,
    group: str,
    times: int,
    topic: str,
    unique_id: str,
    keys: str,
    tag: str | None,
    own: str,
) -> Check:
    half = Half(topic, unique_id, BROKER, handle(identity, position), group)
    asked = {"PGROUP": group, "TRAN_MSG": "true", "TRANSACTION_CHECK_TIMES": str(times)}
    return Check(half, json.loads(own) | system_properties(unique_id, keys, tag) | asked, times)


def _round_is_due(connection: sqlite3.Connection, now: float, timing: BrokerTiming) -> bool:
    """Also after the clock was set back: else no round would come until it has caught up."""
    (last,) = connection.execute("SELECT last_round_at FROM store").fetchone()
    return not 0 <= now - last < timing.check_interval


def _waiting(connection: sqlite3.Connection, born_before: float) -> list[_Waiting]:
    select = f"""SELECT position, message_id, producer_group, born_at, checks FROM half
                 WHERE fate = {OPEN} AND born_at <= ? ORDER BY position"""  # noqa: S608 -- a constant
    return connection.execute(select, (born_before,)).fetchall()


def _discard(connection: sqlite3.Connection, halves: Sequence[_Waiting]) -> None:
    for position, message_id, group, _, _ in halves:
        (topic,) = connection.execute("SELECT topic FROM message WHERE id = ?", (message_id,)).fetchone()
        append_entries(connection, [(DISCARD_TOPIC, 0, message_id)], {"REAL_TOPIC": topic, "PGROUP": group})
        _set_fate(connection, [position], DISCARDED)


def _ask(connection: sqlite3.Connection, halves: Sequence[_Waiting]) -> None:
    """Appends each half again, one check older, and gives the question to one live listener of its group, if any."""
    appended = [
        (position, message_id, group, born_at, checks + 1, OPEN)
        for position, (_, message_id, group, born_at, checks) in zip(
            reserve(connection, len(halves)), halves, strict=True
        )
    ]
    connection.executemany("INSERT INTO half VALUES (?, ?, ?, ?, ?, ?)", appended)
    _set_fate(connection, [half[0] for half in halves], SUPERSEDED)
    listeners = _listeners(connection)
    questions = [
        (position, listeners[group][position % len(listeners[group])])
        for position, _, group, *_ in appended
        if listeners[group]
    ]
    connection.executemany("INSERT INTO question VALUES (?, ?)", questions)


def _set_fate(connection: sqlite3.Connection, positions: Sequence[int], fate: int) -> None:
    """The half waits here no more; a question that nobody has taken goes with it."""
    connection.executemany("UPDATE half SET fate = ? WHERE position = ?", [(fate, each) for each in positions])
    connection.executemany("DELETE FROM question WHERE position = ?", [(each,) for each in positions])


def _listeners(connection: sqlite3.Connection) -> dict[str, list[str]]:
    listeners = defaultdict(list)
    for group, listener in connection.execute("SELECT producer_group, id FROM listener ORDER BY id"):
        listeners[group].append(listener)
    return listeners


def _expire(connection: sqlite3.Connection, stored_before: float) -> None:
    """Deletes the oldest messages, their halves and their places in the queues, read or not."""
    oldest = "SELECT id, stored_at FROM message ORDER BY id LIMIT ?"
    rows = connection.execute(oldest, (_RETENTION_BATCH,)).fetchall()
    horizon = max((id_ for id_, stored_at in rows if stored_at < stored_before), default=None)
    if horizon is None:
        return
    for statement in _EXPIRE:
        connection.execute(statement, {"horizon": horizon})
