"""One runner at a time, by a lock of the database that dies with its holder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY

#: Ends with the transaction, so it works behind a pooler too; one of our own in each schema.
_POSTGRESQL: Final = sa.text(
    "SELECT pg_try_advisory_xact_lock("
    "hashtextextended(concat_ws('.', 'outbox', current_schema(), CAST(:name AS text)), 0))"
)
#: Names are the server's, at most 64 characters, so the schema's name is hashed: by SHA2, since MySQL 9.7 has SHA1 and
#: MD5 no more unless a component is installed.
_NAMED: Final = "concat('outbox.', sha2(concat(database(), '.', :name), 224))"
_MYSQL_TAKE: Final = sa.text(f"SELECT get_lock({_NAMED}, 0)")
_MYSQL_RELEASE: Final = sa.text(f"SELECT release_lock({_NAMED})")


@contextmanager
def exclusive(connection: Connection, name: str) -> Iterator[bool]:
    """Whether this transaction alone may do the work ``name`` until the block ends; never waits.

    SQLite has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        yield bool(connection.execute(_POSTGRESQL, {"name": name}).scalar())
    elif connection.dialect.name in MYSQL_FAMILY:
        if not connection.execute(_MYSQL_TAKE, {"name": name}).scalar():
            yield False
            return
        try:
            yield True
        finally:
            if not connection.invalidated:  # a lost connection has lost its locks
                connection.execute(_MYSQL_RELEASE, {"name": name})
    else:
        yield True
