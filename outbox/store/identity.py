"""Who this database is, and who has been heard of."""

import sqlalchemy as sa

from outbox.identity import fresh_token
from outbox.schema import database as database_table
from outbox.schema import heartbeat
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database

#: Seconds after which a listener that died is no longer listed.
_FORGOTTEN = 86400.0


class Identity:
    """The database's own identity, and the heartbeats of the listeners."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def database_id(self) -> str:
        """The random identity that the migration wrote."""
        with self._database.transaction() as connection:
            return str(connection.execute(sa.select(database_table.c.database_id)).scalar_one())

    def adopt(self) -> str:
        """Draws a new identity for a database that is a copy, and returns it.

        Halves of the original then get UNKNOWN here, and this database's halves get it there.
        """
        fresh = fresh_token()
        with self._database.transaction() as connection:
            connection.execute(database_table.update().values(database_id=fresh))
        return fresh

    def beat(self, name: str) -> None:
        """Says that the listener ``name`` is alive, by the database's clock; forgets those silent for a day."""
        with self._database.transaction(durable=False) as connection:
            own = heartbeat.c.name == name
            if not connection.execute(heartbeat.update().where(own).values(beat_at=utc_now())).rowcount:
                connection.execute(heartbeat.insert().values(name=name, beat_at=utc_now(), started_at=utc_now()))
                connection.execute(heartbeat.delete().where(heartbeat.c.beat_at < utc_after(-_FORGOTTEN)))

    def leave(self, name: str) -> None:
        """Says that the listener ``name`` stops in good order."""
        with self._database.transaction(durable=False) as connection:
            connection.execute(heartbeat.delete().where(heartbeat.c.name == name))
