"""How PostgreSQL tells a sleeping relay of new rows: NOTIFY, and only while somebody sleeps.

A transaction that notifies takes a lock of the whole server until its COMMIT is done, so that writers no longer share
one flush of the log: eight of them lost half their rate. So a writer first asks whether a relay sleeps. A sleeping
relay holds an advisory lock; a writer tries to share it. Where that fails, the transaction notifies (PostgreSQL folds
equal notifications of one transaction into one). Where it succeeds, the writer keeps its share until the end of its
transaction, and the relay, which cannot have the lock meanwhile, does not fall asleep: it goes on polling. A relay that
has got the lock looks at the rows once more before it sleeps, so no row is missed, whatever the order of events. One
that leaves in good order gives the lock back and says so, since writers tell nobody until the next one has it.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

CHANNEL: Final = "outbox_rows"
#: The word "outbox" in ASCII.
SLEEP_LOCK: Final = 0x6F7574626F78
#: What a relay says that leaves; relays of earlier versions do not listen to it.
VACANT: Final = "vacant"

_ANNOUNCE: Final = (
    f"CASE WHEN NOT pg_try_advisory_xact_lock_shared({SLEEP_LOCK}) THEN pg_notify('{CHANNEL}', '') IS NULL END"
)


def announcing() -> sa.ColumnElement[Any]:
    """An expression for RETURNING: tells a sleeping relay at COMMIT; no round trip of its own."""
    return sa.literal_column(_ANNOUNCE, sa.Boolean())


def announce(connection: Connection) -> None:
    """The same as a statement; nothing where the database has no notifications."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(announcing()))
