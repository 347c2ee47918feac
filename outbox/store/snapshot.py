"""Statements of a caller's transaction that have to meet what was committed after its snapshot.

MariaDB refuses to lock a row that came after the snapshot of a REPEATABLE READ transaction (error 1020), and rolls the
whole transaction back: always since 11.6, and where ``innodb_snapshot_isolation`` is on before. Our locks say nothing
of what the transaction has read, so our statements alone go without.
"""

from typing import Final

from sqlalchemy.engine import Connection

from outbox.store.supported import server_of

_BEYOND: Final = "SET STATEMENT innodb_snapshot_isolation=OFF FOR "
#: Where the setting is known: from the first of two releases up to the other.
_KNOWN: Final = (((10, 6, 18), (10, 7)), ((10, 11, 8), (11,)), ((11, 4, 2), (1000,)))


def beyond_snapshot(connection: Connection) -> str:
    """What stands before the statement on this server; "" where nothing has to."""
    name, release = server_of(connection)
    return _BEYOND if name == "MariaDB" and any(first <= release < beyond for first, beyond in _KNOWN) else ""
