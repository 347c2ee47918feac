"""Who this database is."""

import sqlalchemy as sa

from outbox.identity import fresh_token
from outbox.origin import origin_of
from outbox.schema import database as database_table
from outbox.store.database import Database


class Identity:
    """The database's own identity: a copy has the original's until it draws one of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def database_id(self) -> str:
        """The random identity that the migration wrote."""
        with self._database.transaction() as connection:
            return str(connection.execute(sa.select(database_table.c.database_id)).scalar_one())

    def origin(self, service: str) -> str:
        """The origin of what ``service`` sends from this database."""
        return origin_of(service, self.database_id())

    def adopt(self) -> str:
        """Draws a new identity for a database that is a copy, and returns it.

        Halves of the original then get UNKNOWN here, and this database's halves get it there.
        """
        fresh = fresh_token()
        with self._database.transaction() as connection:
            connection.execute(database_table.update().values(database_id=fresh))
        return fresh
