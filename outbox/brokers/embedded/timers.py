"""The broker's timer: plain messages that wait in a topic of the broker's own until their time has come.

So does RocketMQ (``TimerMessageStore``, ``ScheduleMessageService``): a message with a timer goes to a system topic, and
to its own one when it is due. A half with a timer is lost when it is committed, as on the real broker.
"""

import sqlite3
from collections.abc import Mapping, Sequence

from outbox.brokers.base import Outgoing
from outbox.brokers.embedded.schema import TIMER_TOPIC
from outbox.timer import DELIVER_AT, LEVEL, LEVEL_SECONDS

#: An entry to be made visible: topic, queue, message id.
Place = tuple[str, int, int]


def due_at(properties: Mapping[str, str], now: float) -> float | None:
    """When the message is delivered, in seconds since 1970; None: at once."""
    if level := properties.get(LEVEL):
        return now + LEVEL_SECONDS[min(int(level), len(LEVEL_SECONDS)) - 1]
    moment = int(properties.get(DELIVER_AT, 0)) / 1000
    return moment if moment > now else None


def placed(messages: Sequence[Outgoing], places: Sequence[Place], now: float) -> list[Place]:
    """Where the messages go: what is not due yet waits in the timer's topic, under its due time in milliseconds."""
    found: list[Place] = []
    for message, place in zip(messages, places, strict=True):
        due = due_at(message.properties, now)
        found.append(place if due is None else (TIMER_TOPIC, int(due * 1000), place[2]))
    return found


def is_due(connection: sqlite3.Connection, now: float) -> bool:
    """Whether ``take_due`` would find anything."""
    select = "SELECT 1 FROM entry WHERE topic = ? AND queue <= ? LIMIT 1"
    return connection.execute(select, (TIMER_TOPIC, now * 1000)).fetchone() is not None


def take_due(connection: sqlite3.Connection, now: float) -> list[Place]:
    """Takes what is due off the timer's topic, the first due first: where it belongs."""
    select = """SELECT entry.id, message.topic, message.queue, message.id
                FROM entry JOIN message ON message.id = entry.message_id
                WHERE entry.topic = ? AND entry.queue <= ? ORDER BY entry.queue, entry.id"""
    rows = connection.execute(select, (TIMER_TOPIC, now * 1000)).fetchall()
    connection.executemany("DELETE FROM entry WHERE id = ?", [(entry_id,) for entry_id, *_ in rows])
    return [(topic, queue, message_id) for _, topic, queue, message_id in rows]
