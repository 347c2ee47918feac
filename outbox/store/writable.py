"""Whether the database takes writes at this moment, by one question that writes nothing."""

from typing import Final

import sqlalchemy as sa

from outbox.columns import MYSQL_FAMILY
from outbox.store.database import Database

_POSTGRESQL: Final = "(current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery())"
#: A number, or a word where there are more than two of them (MariaDB 12).
_GLOBAL: Final = "@@global.read_only NOT IN ('0', 'OFF')"
_MYSQL: Final = f"SELECT {_GLOBAL} OR @@session.transaction_read_only"
_MARIADB: Final = f"SELECT {_GLOBAL} OR @@session.tx_read_only"


def read_only(dialect: str) -> sa.ColumnElement[bool]:
    """Whether the server is a standby, or set read-only: what it answers may be what was, and another one goes on."""
    if dialect == "sqlite":
        return sa.false()
    return sa.literal_column(_GLOBAL if dialect in MYSQL_FAMILY else _POSTGRESQL, sa.Boolean())


def why_not_writable(database: Database) -> str:
    """ "" if it takes writes; raises ``SQLAlchemyError`` where it cannot be asked. SQLite: BEGIN IMMEDIATE tells."""
    if database.dialect == "sqlite":
        with database.transaction():
            return ""
    with database.look() as connection:
        if not connection.execute(sa.text(_question(database))).scalar_one():
            return ""
        connection.invalidate()  # the server keeps it, while its name may lead to another one
        return "the server is read-only: a standby, or set so"


def _question(database: Database) -> str:
    if database.dialect not in MYSQL_FAMILY:
        return f"SELECT {_POSTGRESQL}"
    return _MARIADB if database.engine.dialect.is_mariadb else _MYSQL  # type: ignore[attr-defined]
