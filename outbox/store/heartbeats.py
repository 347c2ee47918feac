"""The heartbeats of the listeners: who answers checks, and since when without a gap."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.schema import ANY_LISTENER, heartbeat
from outbox.store.clock import utc_after, utc_now
from outbox.store.conflicts import repeated
from outbox.store.database import Database

#: Seconds after which a listener that died is no longer listed.
_FORGOTTEN: Final = 86400.0


class Heartbeats:
    """Written by each listener, read by whoever has to know whether there was one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beat(self, name: str, gap: float) -> None:
        """Says that the listener ``name`` is alive, by the database's clock; forgets those silent for a day.

        After more than ``gap`` seconds of silence of all listeners the time that is watched begins anew.
        """
        repeated(lambda: self._write(name, gap))  # those at other servers of the cluster write the second row as well

    def _write(self, name: str, gap: float) -> None:
        with self._database.transaction(durable=False) as connection:
            if _beat(connection, name, gap):
                connection.execute(heartbeat.delete().where(heartbeat.c.beat_at < utc_after(-_FORGOTTEN)))
            _beat(connection, ANY_LISTENER, gap)

    def watched_since(self, gap: float) -> datetime | None:
        """Since when some listener was there all the time, silent for at most ``gap`` seconds; None: there is none."""
        watch = sa.select(heartbeat.c.started_at).where(
            heartbeat.c.name == ANY_LISTENER, heartbeat.c.beat_at >= utc_after(-gap)
        )
        with self._database.transaction() as connection:
            return connection.execute(watch).scalar_one_or_none()

    def leave(self, name: str) -> None:
        """Says that the listener ``name`` stops in good order."""
        with self._database.transaction(durable=False) as connection:
            connection.execute(heartbeat.delete().where(heartbeat.c.name == name))


def _beat(connection: Connection, name: str, gap: float) -> bool:
    """Writes one heartbeat; whether it is the first of its name."""
    silent = heartbeat.c.beat_at < utc_after(-gap)
    # In this order: MySQL lets a later assignment see what an earlier one wrote.
    values = (
        (heartbeat.c.started_at, sa.case((silent, utc_now()), else_=heartbeat.c.started_at)),
        (heartbeat.c.beat_at, utc_now()),
    )
    if connection.execute(heartbeat.update().where(heartbeat.c.name == name).ordered_values(*values)).rowcount:
        return False
    connection.execute(heartbeat.insert().values(name=name, beat_at=utc_now(), started_at=utc_now()))
    return True
