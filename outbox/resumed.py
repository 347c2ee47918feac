"""An upgrade of MariaDB or MySQL that died half-way goes on where it stopped.

Each statement of DDL is committed there by itself (manual, "Statements That Cause an Implicit Commit"), and the
revision that it belongs to is written down after it. A process that dies in between leaves a database that has more
than its revision says, and the next upgrade meets what is there already.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPICursor, ExecutionContext
from sqlalchemy.schema import CreateTable

from outbox.columns import MYSQL_FAMILY

_TABLE_EXISTS: Final = 1050
#: ``ER_DUP_FIELDNAME``, ``ER_DUP_KEYNAME``: the table is the toolkit's own by then.
_PART_EXISTS: Final = (1060, 1061)


@contextmanager
def resuming(connection: sa.Connection) -> Generator[None]:
    """Statements of DDL whose result is there already count as done; other databases roll back what is unfinished."""
    if connection.dialect.name not in MYSQL_FAMILY:
        yield
        return
    event.listen(connection.engine, "do_execute", _execute)
    try:
        yield
    finally:
        event.remove(connection.engine, "do_execute", _execute)


def _execute(cursor: DBAPICursor, statement: str, parameters: Any, context: ExecutionContext | None = None) -> bool:
    """Executes in the dialect's place; True says so."""
    try:
        cursor.execute(statement, parameters)
    except Exception as error:
        code = error.args[0] if error.args else None
        if not (code in _PART_EXISTS or (code == _TABLE_EXISTS and _is_as_wanted(cursor, context))):
            raise
    return True


def _is_as_wanted(cursor: DBAPICursor, context: ExecutionContext | None) -> bool:
    """Whether the table that is there has the columns of the one that is wanted: a stranger's table has others."""
    wanted = getattr(getattr(context, "compiled", None), "statement", None)
    if not isinstance(wanted, CreateTable):
        return False
    cursor.execute(f"SHOW COLUMNS FROM `{wanted.element.name}`")
    return {row[0] for row in cursor.fetchall()} == {column.name for column in wanted.element.columns}
