"""The claim of a key in ``outbox_inbox``: an insert that the database decides, in each database's own way."""

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from outbox.columns import MYSQL_FAMILY
from outbox.consumer import opening
from outbox.consumer.drivers import DUPLICATE_ENTRY, LOCK_NOWAIT, LOCK_TIMEOUT, begun, number_of
from outbox.consumer.errors import TransactionBroken
from outbox.consumer.keys import stored_key
from outbox.consumer.message import Message
from outbox.consumer.schema import inbox
from outbox.consumer.single_trip import Answer, Wire, binary
from outbox.store.clock import utc_now


class Inserted(Enum):
    """What the insert of an inbox row said."""

    NEW = "new"
    EXISTS = "exists"
    #: Another transaction has the key and has not ended.
    BUSY = "busy"
    #: One of the two: the look that ends the transaction tells.
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class Claim:
    """What identifies an effect, and what its message must be."""

    consumer: str
    key: bytes
    topic: str
    payload_hash: bytes

    @classmethod
    def of(cls, consumer: str, message: Message) -> "Claim":
        """The claim that a message makes for a consumer."""
        return cls(consumer, stored_key(message.key), message.topic, message.payload_hash)

    def columns(self) -> dict[str, Any]:
        """As columns of the inbox."""
        return {
            "consumer": self.consumer,
            "key": self.key,
            "topic": self.topic,
            "payload_hash": self.payload_hash,
        }

    def row(self) -> sa.ColumnElement[bool]:
        """The condition for its row."""
        return sa.and_(inbox.c.consumer == self.consumer, inbox.c.key == self.key)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The row that has the key."""

    topic: str
    payload_hash: bytes
    is_done: bool

    @classmethod
    def of(cls, row: Any) -> "Earlier":
        """Of a row with these columns and ``done_at``."""
        return cls(row.topic, bytes(row.payload_hash), row.done_at is not None)

    def contradicts(self, claim: Claim) -> str | None:
        """Why the claim's message is another one than the row's; None: it is the same."""
        if self.topic != claim.topic:
            return f"its key was used by a message of topic {self.topic!r}; give each topic a consumer name of its own"
        if self.payload_hash != claim.payload_hash:
            return "its key was used by a message with another payload; one business fact needs one key of its own"
        return None


# Lock, insert and conflict target as in ``opening``, for drivers that it does not speak to.
_INSERT_POSTGRESQL = """
    WITH gate AS MATERIALIZED (
        SELECT pg_try_advisory_xact_lock(%(lock)s) AS mine, set_config('lock_timeout', %(lock_timeout)s, true)
    ), added AS (
        INSERT INTO outbox_inbox (consumer, key, topic, payload_hash, received_at, done_at)
        SELECT %(consumer)s::text, %(key)s::bytea, %(topic)s::text, %(payload_hash)s::bytea,
               statement_timestamp(), statement_timestamp()
        FROM gate WHERE mine
        ON CONFLICT (consumer, key) DO NOTHING
        RETURNING 1
    )
    SELECT mine, EXISTS (SELECT FROM added) FROM gate
"""
_EARLIER_POSTGRESQL = (
    "SELECT topic, payload_hash, done_at IS NOT NULL FROM outbox_inbox WHERE consumer = %(consumer)s AND key = %(key)s"
)


def insert(connection: Connection, claim: Claim, lock_timeout: float) -> Inserted:
    """Inserts the row as done: it becomes true together with the handler's effect, or not at all.

    ``lock_timeout`` (seconds) holds for the rest of the transaction on PostgreSQL.
    """
    if connection.dialect.name != "postgresql":
        return Inserted.NEW if _insert(connection, claim, {"done_at": utc_now()}) else Inserted.EXISTS
    if Wire.is_possible(connection):
        return Inserted.NEW if _opened(connection, claim, lock_timeout) else Inserted.TAKEN
    values = claim.columns() | {"lock": _lock_number(claim), "lock_timeout": f"{int(lock_timeout * 1000)}ms"}
    mine, added = _fetched(connection, _INSERT_POSTGRESQL, values)
    if not mine:
        return Inserted.BUSY
    return Inserted.NEW if added else Inserted.EXISTS


def _opened(connection: Connection, claim: Claim, lock_timeout: float) -> bool:
    wire = Wire(connection)
    names = wire.text(claim.consumer), binary(claim.key), wire.text(claim.topic), binary(claim.payload_hash)
    return opening.opened(wire, (*names, str(_lock_number(claim))), lock_timeout)


def committed(connection: Connection) -> None:
    """The transaction that inserted the row was committed."""
    opening.committed(connection.info)


def glimpsed(connection: Connection, claim: Claim) -> Earlier | None:
    """The committed row of the key, in one round trip and no transaction; None also where that cannot be."""
    if not Wire.is_possible(connection):
        return None
    wire = Wire(connection)
    return _earlier_of(wire, wire.sent(_look(wire, claim))[0]) if wire.is_idle else None


def conclude(connection: Connection, claim: Claim) -> Earlier | None:
    """Ends a transaction that found its key ``TAKEN``, and has nothing to keep; the row that has the key, if committed.

    The read has a snapshot of its own, so that a row that was committed while the insert ran is seen.
    """
    wire = Wire(connection)
    answer, _ = wire.sent(_look(wire, claim), "COMMIT")
    row = _earlier_of(wire, answer)
    if row is None or row.is_done:  # else the handler's transaction follows
        opening.committed(wire.memory)
    return row


def _look(wire: Wire, claim: Claim) -> str:
    return (
        "SELECT topic, encode(payload_hash, 'hex'), done_at IS NOT NULL FROM outbox_inbox "  # noqa: S608 -- literals
        f"WHERE consumer = {wire.text(claim.consumer)} AND key = {binary(claim.key)}"
    )


def _earlier_of(wire: Wire, answer: Answer) -> Earlier | None:
    if not answer.ntuples:
        return None
    topic, payload_hash, done = wire.first_row(answer)
    return Earlier(topic, bytes.fromhex(payload_hash), done == "t")


def _fetched(connection: Connection, statement: str, values: dict[str, Any]) -> Any:
    """The one row of a statement, by the driver's own cursor, which spares each message half the time."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement, values)
        return cursor.fetchone()
    finally:
        cursor.close()


def insert_undone(connection: Connection, claim: Claim) -> None:
    """Makes sure that there is a row to lock; for handlers too long to keep others waiting at the index."""
    if earlier(connection, claim) is None:
        _insert(connection, claim, {})


def earlier(connection: Connection, claim: Claim) -> Earlier | None:
    """The committed row of the key."""
    if connection.dialect.name != "postgresql":
        return _row(connection, _select(claim))
    row = _fetched(connection, _EARLIER_POSTGRESQL, {"consumer": claim.consumer, "key": claim.key})
    return None if row is None else Earlier(row[0], bytes(row[1]), row[2])


def locked(connection: Connection, claim: Claim) -> Earlier | None:
    """The row, locked until the transaction ends; None: another transaction has it. The database frees it on death."""
    if connection.dialect.name == "postgresql":
        return _row(connection, _select(claim).with_for_update(skip_locked=True))
    if connection.dialect.name in MYSQL_FAMILY:
        # Answers to reads do not tell the driver that a transaction is open, and the guard asks the driver.
        connection.exec_driver_sql("START TRANSACTION")
    try:
        return _row(connection, _select(claim).with_for_update(nowait=True))
    except DBAPIError as error:
        if number_of(error.orig) in (LOCK_NOWAIT, LOCK_TIMEOUT):
            return None
        raise


def finish(connection: Connection, claim: Claim) -> None:
    """Marks the locked row done; raises if it is gone or done, which no owner of the lock can have caused."""
    undone = inbox.update().where(claim.row(), inbox.c.done_at.is_(None))
    if connection.execute(undone.values(done_at=utc_now())).rowcount != 1:
        raise TransactionBroken("the inbox row that was locked is gone or done: something else wrote to it")


def forget(engine: Engine, consumer: str, key: bytes) -> bool:
    """Deletes the key's row, so that a replay, or another payload, takes effect; one that is worked on stays."""
    claim = Claim(consumer, key, "", b"")
    unowned = sa.or_(inbox.c.done_at.is_not(None), inbox.c.lease_until.is_(None), inbox.c.lease_until <= utc_now())
    with begun(engine) as connection:
        if locked(connection, claim) is None:
            return False
        gone = connection.execute(inbox.delete().where(claim.row(), unowned)).rowcount
        connection.commit()
        return bool(gone == 1)


def _insert(connection: Connection, claim: Claim, extra: dict[str, Any]) -> bool:
    values = claim.columns() | {"received_at": utc_now()} | extra
    if connection.dialect.name in MYSQL_FAMILY:
        return insert_on_mysql(connection, values)
    build = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = build(inbox).values(values).on_conflict_do_nothing(index_elements=["consumer", "key"])
    return connection.execute(statement.returning(inbox.c.consumer)).first() is not None


def insert_on_mysql(connection: Connection, values: dict[str, Any]) -> bool:
    """A plain INSERT, whose 1062 can only be this key's: IGNORE would hide other errors, and row counts mislead."""
    try:
        connection.execute(inbox.insert().values(values))
    except IntegrityError as error:
        if number_of(error.orig) != DUPLICATE_ENTRY:
            raise
        return False
    return True


def _select(claim: Claim) -> Any:
    return sa.select(inbox.c.topic, inbox.c.payload_hash, inbox.c.done_at).where(claim.row())


def _row(connection: Connection, query: Any) -> Earlier | None:
    row = connection.execute(query).one_or_none()
    return Earlier.of(row) if row is not None else None


def _lock_number(claim: Claim) -> int:
    """A 64-bit number for the key; two keys that share it only wait for each other."""
    text = b"outbox-inbox\x00" + claim.consumer.encode() + b"\x00" + claim.key
    return int.from_bytes(sha256(text).digest()[:8], signed=True)
