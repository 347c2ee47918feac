"""Rows for the tests of the store."""

from typing import Any

import sqlalchemy as sa

from outbox import Outbox
from outbox.brokers.base import Half
from outbox.identity import fresh_token, unique_ids
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.store.database import Database

producer = Outbox(origin="tests")
#: Seconds that no test waits for: a lease is over where a test says so, however long the machine stands still.
LONG_LEASE = 3600.0


def added(database: Database, count: int = 1, **message: Any) -> list[int]:
    """Adds messages, each in the one transaction, and returns their ids."""
    fields = {"topic": "payments", "payload": {"n": 1}} | message
    with database.transaction() as connection:
        return [producer.add(connection, key=f"key-{fresh_token()}", **fields) for _ in range(count)]


def half_of(topic: str = "payments") -> Half:
    """A half as some broker might have stored it."""
    return Half(topic, unique_ids.fresh(), "broker-a", "1:2:3", "outbox-tests")


def state_of(database: Database, row_id: int) -> State:
    """The state of a row."""
    return State(column(database, row_id, "state"))


def column(database: Database, row_id: int, name: str) -> Any:
    """One column of a row."""
    with database.transaction() as connection:
        return connection.execute(sa.select(outbox.c[name]).where(outbox.c.id == row_id)).scalar_one()


def force(database: Database, row_id: int, **values: Any) -> None:
    """Writes columns past every rule, to bring a row where a test wants it."""
    with database.transaction() as connection:
        connection.execute(outbox.update().where(outbox.c.id == row_id).values(**values))
