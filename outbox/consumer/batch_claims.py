"""The claims of a whole batch in one statement: which keys are new, and what the others are.

A row that is not done belongs to a long handler, of an ``Inbox`` with ``row_lock`` or a ``LeasedInbox``, before this
consumer became one of batches. Whose owner is gone is this transaction's to do, as if it were new.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from outbox.columns import MYSQL_FAMILY
from outbox.consumer.claims import Claim, Earlier
from outbox.consumer.drivers import LOCK_NOWAIT, LOCK_TIMEOUT, number_of
from outbox.consumer.outcome import Duplicate, InProgress, Outcome, Park
from outbox.consumer.schema import inbox
from outbox.store.clock import utc_now


@dataclass(frozen=True, slots=True)
class Sorted:
    """The claims of a batch by what the inserts said."""

    new: frozenset[bytes]
    standing: dict[bytes, Earlier]

    def outcome_of(self, claim: Claim) -> Outcome | None:
        """What is known of the claim already; None: it is new, and this transaction's to do."""
        if claim.key in self.new:
            return None
        row = self.standing.get(claim.key)
        if row is None:
            return InProgress()
        if reason := row.contradicts(claim):
            return Park(reason)
        return Duplicate() if row.is_done else InProgress()


def insert_all(connection: Connection, claims: Sequence[Claim]) -> Sorted:
    """Inserts the rows as done, in the order of their keys: two batches in opposite orders would deadlock.

    ``claims`` are of one consumer, with distinct keys. MySQL cannot tell which rows of an insert were there: the ones
    that are not are inserted after a look, and a key that comes in between fails the statement.
    """
    in_order = sorted(claims, key=lambda claim: claim.key)
    if connection.dialect.name in MYSQL_FAMILY:
        standing = _standing(connection, in_order)
        fresh = [claim for claim in in_order if claim.key not in standing]
        if fresh:
            connection.execute(inbox.insert().values(_rows(fresh)))
        return _sorted(connection, in_order, frozenset(claim.key for claim in fresh), standing)
    insert = _insert_on_postgresql if connection.dialect.name == "postgresql" else _insert_on_sqlite
    new = frozenset(bytes(key) for key in insert(connection, in_order).scalars())
    standing = _standing(connection, [claim for claim in in_order if claim.key not in new])
    return _sorted(connection, in_order, new, standing)


# The same text for any number of rows: a VALUES list of a hundred takes SQLAlchemy and the driver longer to write than
# the server to insert.
_INSERT_POSTGRESQL = """
    INSERT INTO outbox_inbox (consumer, key, topic, payload_hash, received_at, done_at)
    SELECT %(consumer)s::text, key, topic, payload_hash, statement_timestamp(), statement_timestamp()
    FROM unnest(%(keys)s::bytea[], %(topics)s::text[], %(hashes)s::bytea[]) AS claimed (key, topic, payload_hash)
    ON CONFLICT (consumer, key) DO NOTHING
    RETURNING key
"""


def _insert_on_postgresql(connection: Connection, claims: Sequence[Claim]) -> sa.CursorResult[Any]:
    values = {
        "consumer": claims[0].consumer,
        "keys": [claim.key for claim in claims],
        "topics": [claim.topic for claim in claims],
        "hashes": [claim.payload_hash for claim in claims],
    }
    return connection.exec_driver_sql(_INSERT_POSTGRESQL, values)


def _insert_on_sqlite(connection: Connection, claims: Sequence[Claim]) -> sa.CursorResult[Any]:
    statement = sqlite.insert(inbox).values(_rows(claims)).on_conflict_do_nothing(index_elements=["consumer", "key"])
    return connection.execute(statement.returning(inbox.c.key))


def _sorted(
    connection: Connection, claims: Sequence[Claim], new: frozenset[bytes], standing: dict[bytes, Earlier]
) -> Sorted:
    undone = [
        claim for claim in claims if (row := standing.get(claim.key)) and not row.is_done and not row.contradicts(claim)
    ]
    return Sorted(new | _taken_over(connection, undone), standing)


def _taken_over(connection: Connection, undone: Sequence[Claim]) -> frozenset[bytes]:
    """Those that nobody works on, neither under the row's lock nor under a lease; marked done."""
    if not undone:
        return frozenset()
    rows = sa.and_(inbox.c.consumer == undone[0].consumer, inbox.c.done_at.is_(None))
    over = sa.or_(inbox.c.lease_until.is_(None), inbox.c.lease_until <= utc_now())
    query = sa.select(inbox.c.key).where(rows, over, inbox.c.key.in_([claim.key for claim in undone]))
    free = _locked(connection, query.order_by(inbox.c.key))
    if free:
        done = inbox.update().where(rows, inbox.c.key.in_(free))
        connection.execute(done.values(done_at=utc_now(), lease_until=None))
    return frozenset(free)


def _locked(connection: Connection, query: Any) -> list[bytes]:
    """The keys of rows that could be locked; on MySQL none if one could not, since not all versions skip."""
    on_mysql = connection.dialect.name in MYSQL_FAMILY
    lock = {"nowait": True} if on_mysql else {"skip_locked": True}
    try:
        return [bytes(key) for key in connection.execute(query.with_for_update(**lock)).scalars()]
    except DBAPIError as error:
        if on_mysql and number_of(error.orig) in (LOCK_NOWAIT, LOCK_TIMEOUT):
            return []
        raise


def _rows(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    return [claim.columns() | {"received_at": utc_now(), "done_at": utc_now()} for claim in claims]


def _standing(connection: Connection, claims: Sequence[Claim]) -> dict[bytes, Earlier]:
    """The committed rows of the keys."""
    if not claims:
        return {}
    keys = [claim.key for claim in claims]
    query = sa.select(inbox.c.key, inbox.c.topic, inbox.c.payload_hash, inbox.c.done_at)
    found = connection.execute(query.where(inbox.c.consumer == claims[0].consumer, inbox.c.key.in_(keys)))
    return {bytes(row.key): Earlier.of(row) for row in found}
