"""The tables of the broker's file. One counter numbers everything that is appended, as offsets of a commit log do."""

import sqlite3
from typing import Final

from outbox.identity import fresh_token

VERSION: Final = 1

#: ``half.fate``: waiting for its end, ended, re-appended elsewhere by a check, or given up after the last check.
#: Only rounds of checks look at it; an ending works at any position, whatever its fate.
OPEN: Final = 0
ENDED: Final = 1
SUPERSEDED: Final = 2
DISCARDED: Final = 3

#: Where halves go after their last check (``TransactionalMessageUtil``, broker).
DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
#: Where messages wait for the broker's timer (``TimerMessageStore.TIMER_TOPIC``).
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
#: Queues of a topic (``defaultTopicQueueNums`` of a producer).
QUEUES: Final = 4

_TABLES: Final = (
    # One row. store_id is part of every handle: a file made anew does not take the old one's handles for its own.
    """CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1), store_id TEXT NOT NULL, created_at REAL NOT NULL,
        last_round_at REAL NOT NULL, next_position INTEGER NOT NULL)""",
    # What was sent, once; halves and entries point here.
    """CREATE TABLE message (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, queue INTEGER NOT NULL, unique_id TEXT NOT NULL,
        keys TEXT NOT NULL, tag TEXT, properties TEXT NOT NULL, body BLOB NOT NULL, stored_at REAL NOT NULL)""",
    "CREATE INDEX message_unique_id ON message (unique_id)",
    # A half at one position; each check appends it again.
    """CREATE TABLE half (
        position INTEGER PRIMARY KEY, message_id INTEGER NOT NULL, producer_group TEXT NOT NULL,
        born_at REAL NOT NULL, checks INTEGER NOT NULL, fate INTEGER NOT NULL)""",
    f"CREATE INDEX half_open ON half (position) WHERE fate = {OPEN}",
    # A visible message: a place in a queue.
    """CREATE TABLE entry (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, queue INTEGER NOT NULL, message_id INTEGER NOT NULL,
        extra TEXT NOT NULL)""",
    "CREATE INDEX entry_topic ON entry (topic, id)",
    "CREATE INDEX entry_message ON entry (message_id)",
    # Who answers checks of a producer group, across processes.
    """CREATE TABLE listener (
        id TEXT NOT NULL, producer_group TEXT NOT NULL, expires_at REAL NOT NULL, PRIMARY KEY (id, producer_group))""",
    # A check on its way to the one listener that was chosen.
    "CREATE TABLE question (position INTEGER PRIMARY KEY, listener TEXT NOT NULL)",
    # The first entry that a consumer group has not seen.
    """CREATE TABLE progress (
        consumer_group TEXT NOT NULL, topic TEXT NOT NULL, next_entry INTEGER NOT NULL,
        PRIMARY KEY (consumer_group, topic))""",
    # An entry that a consumer group has seen and not acknowledged.
    """CREATE TABLE delivery (
        consumer_group TEXT NOT NULL, entry_id INTEGER NOT NULL, topic TEXT NOT NULL, attempt INTEGER NOT NULL,
        visible_at REAL NOT NULL, receipt TEXT NOT NULL, PRIMARY KEY (consumer_group, entry_id))""",
    "CREATE INDEX delivery_due ON delivery (consumer_group, topic, visible_at)",
)


def ensure(connection: sqlite3.Connection, now: float) -> None:
    """Creates the tables unless they are there; raises ``sqlite3.DatabaseError`` for a file of another version."""
    if _version(connection) == 0:
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:
            _create(connection, now)
        connection.execute("COMMIT")
    if (found := _version(connection)) != VERSION:
        raise sqlite3.DatabaseError(f"schema version {found}, not {VERSION}: delete the broker's file, or name another")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _create(connection: sqlite3.Connection, now: float) -> None:
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO store VALUES (1, ?, ?, ?, 1)", (fresh_token(), now, now))
    connection.execute(f"PRAGMA user_version = {VERSION}")
