"""Retention: rows that ended long enough ago are deleted, in small batches, by one runner at a time.

From-states: delivered and cancelled rows, and dead ones where a period for them is set; never an open row, and never a
dead one that still holds its lane. If the runner dies, its batch is undone, and the next run finds the rows again.

The rows are found by the primary key, from the lowest id up to the first row that is younger than the shortest period:
rows are added and end in about that order, so the walk meets hardly anything but what it deletes, and needs no index
that each delivery would have to maintain (``docs/decisions`` has the figures). It reads without locks; then the rows
are locked by their ids, those that somebody holds are left to the next run, and the others are deleted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import State, expiring
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_after
from outbox.store.database import Database, plan_freely
from outbox.store.exclusive import exclusive
from outbox.store.given import given, ids, selecting

_NAME: Final = "retention"


@dataclass(frozen=True, slots=True)
class Periods:
    """For how many seconds rows are kept after they ended."""

    #: Delivered and cancelled rows.
    ended: float
    #: Dead rows; None: until an operator decides.
    dead: float | None = None

    @property
    def shortest(self) -> float:
        """No row that was added within this time is old enough."""
        return self.ended if self.dead is None else min(self.ended, self.dead)


class Retention:
    """The statements of the purge; each batch is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def run(self, periods: Periods, limit: int) -> Iterator[int]:
        """Deletes up to ``limit`` rows at a time, oldest first, and says after each batch how many.

        Ends when nothing is old enough, or when another runner is at work.
        """
        after, end = 0, self._first_young(periods.shortest)
        while (batch := self._batch(periods, limit, after, end)) is not None:
            deleted, after, full = batch
            if deleted:
                yield deleted
            if not full:
                return

    def _first_young(self, shortest: float) -> int | None:
        """The first row that was added since; rows added in another order than that of their ids go later."""
        young = sa.select(outbox.c.id).where(outbox.c.created_at >= utc_after(-shortest)).order_by(outbox.c.id).limit(1)
        with self._database.transaction(index_order=True) as connection:
            return connection.execute(_by_id(young)).scalar()

    def _batch(self, periods: Periods, limit: int, after: int, end: int | None) -> tuple[int, int, bool] | None:
        """How many rows were deleted, the last id that was looked at, and whether more may follow; None: not alone."""
        old = sa.select(outbox.c.id).where(outbox.c.id > after, _expired(periods)).order_by(outbox.c.id).limit(limit)
        if end is not None:
            old = old.where(outbox.c.id < end)
        with self._database.transaction(index_order=True) as connection, exclusive(connection, _NAME) as alone:
            if not alone:
                return None
            found = list(connection.execute(_by_id(old)).scalars())
            plan_freely(connection)
            deleted = self._delete(connection, found, periods) if found else 0
            return deleted, found[-1] if found else after, len(found) == limit

    def _delete(self, connection: Connection, found: list[int], periods: Periods) -> int:
        """Only what nobody holds, and what is still to be deleted once it is ours."""
        named = selecting(connection.dialect.name, given(connection.dialect.name, {"id": int}), outbox.c.id)
        lock = named.where(_expired(periods)).order_by(outbox.c.id).with_for_update(of=outbox, skip_locked=True)
        locked = list(connection.execute(lock, ids(found)).scalars())
        if locked:
            connection.execute(outbox.delete().where(outbox.c.id.in_(locked)))
        return len(locked)


def _expired(periods: Periods) -> ColumnElement[bool]:
    """The row ended more than its period ago."""
    ended_at = sa.func.coalesce(outbox.c.delivered_at, outbox.c.available_at)
    expired = sa.and_(state_in(expiring()), ended_at < utc_after(-periods.ended))
    if periods.dead is None:
        return expired
    given_up = sa.and_(state_in((State.DEAD,)), outbox.c.open_lane.is_(None), ended_at < utc_after(-periods.dead))
    return sa.or_(expired, given_up)


def _by_id(query: sa.Select[int]) -> sa.Select[int]:
    """Walks the primary key: MySQL would rather read all rows of a state by its index, and sort them."""
    for dialect in MYSQL_FAMILY:
        query = query.with_hint(outbox, "FORCE INDEX (PRIMARY)", dialect)
    return query
