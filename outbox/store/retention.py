"""Retention: rows that ended long enough ago are deleted, in small batches, by one runner at a time.

From-states: delivered and cancelled rows, and dead ones where a period for them is set; never an open row, and never a
dead one that still holds its lane. If the runner dies, its batch is undone, and the next run finds the rows again.

The rows are found by the primary key, from the lowest id up to the first row that is younger than the shortest period:
rows are added and end in about that order, so the walk meets hardly anything but what it deletes, and needs no index
that each delivery would have to maintain (``docs/decisions`` has the figures). It goes in windows of so many ids, so
that no statement takes longer for the rows that are kept, however many those are. It reads without locks; then the
rows are locked by their ids, those that somebody holds are left to a later run, and the others are deleted.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from outbox.clock import monotonic
from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import State, expiring
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_after
from outbox.store.database import Database, plan_freely
from outbox.store.exclusive import exclusive
from outbox.store.given import given, selecting

_NAME: Final = "retention"
_Query = TypeVar("_Query", sa.Select[int], sa.Select[Any, Any])
#: Rows that one statement looks at.
WINDOW: Final = 5_000


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
    """The statements of the purge; each batch is one transaction. For one thread."""

    def __init__(self, database: Database, *, tour: float = 0.0, now: Callable[[], float] = monotonic) -> None:
        """Runs go on where the last one ended, and after ``tour`` seconds begin anew: what was kept then, or held by
        somebody, and is to be deleted now, goes so much later. Millions of kept rows are not read every minute.
        """
        self._database = database
        self._tour = tour
        self._now = now
        self._after = 0
        self._anew = -math.inf

    def run(self, periods: Periods, limit: int) -> Iterator[int]:
        """Deletes up to ``limit`` rows at a time, oldest first, and says after each batch how many.

        Ends when nothing is old enough, or when another runner is at work.
        """
        if self._now() >= self._anew:
            self._after, self._anew = 0, self._now() + self._tour
        more = True
        while more:
            end, more = self._window(periods)
            while self._after < end:
                if (deleted := self._batch(periods, limit, end)) is None:
                    return
                if deleted:
                    yield deleted

    def _window(self, periods: Periods) -> tuple[int, bool]:
        """The last of the next rows that are older than the shortest period, and whether others may follow."""
        young = outbox.c.created_at >= utc_after(-periods.shortest)
        columns = (outbox.c.id, sa.case((young, outbox.c.id)).label("young"))
        rows: Any = sa.select(*columns).where(outbox.c.id > self._after).order_by(outbox.c.id)
        of = _by_id(rows.limit(WINDOW)).subquery()
        looked = sa.select(sa.func.max(of.c.id), sa.func.count(), sa.func.min(of.c.young))
        with self._database.transaction(index_order=True) as connection:
            last, count, first_young = connection.execute(looked).one()
        if first_young is not None:
            return first_young - 1, False
        return last or 0, count == WINDOW

    def _batch(self, periods: Periods, limit: int, end: int) -> int | None:
        """How many rows were deleted; None: not alone."""
        within = (outbox.c.id > self._after, outbox.c.id <= end)
        old = sa.select(outbox.c.id).where(*within, _expired(periods)).order_by(outbox.c.id).limit(limit)
        with self._database.transaction(index_order=True) as connection, exclusive(connection, _NAME) as alone:
            if not alone:
                return None
            found = list(connection.execute(_by_id(old)).scalars())
            plan_freely(connection)
            deleted = self._delete(connection, found, periods) if found else 0
        self._after = found[-1] if len(found) == limit else end
        return deleted

    def _delete(self, connection: Connection, found: list[int], periods: Periods) -> int:
        """Only what nobody holds, and what is still to be deleted once it is ours."""
        rows = given(connection.dialect.name, {"id": int})
        named = selecting(connection.dialect.name, rows.table, outbox.c.id)
        lock = named.where(_expired(periods)).order_by(outbox.c.id).with_for_update(of=outbox, skip_locked=True)
        locked = list(connection.execute(lock, rows.ids(found)).scalars())
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


def _by_id(query: _Query) -> _Query:
    """Walks the primary key: MySQL would rather read all rows of a state by its index, and sort them."""
    for dialect in MYSQL_FAMILY:
        query = query.with_hint(outbox, "FORCE INDEX (PRIMARY)", dialect)
    return query
