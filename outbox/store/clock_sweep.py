"""The sweep after the clock: finds rows that wait for what the database's clock will say only much later.

Where that clock is set back by an hour, everything that was written before would wait for that hour: rows that were
added, attempts and commit leases whose holders are gone. So a row is brought back to the present if no write of the
toolkit, by the clock as it is now, can have given it its ``available_at``: it lies further ahead than any lease or
back-off reaches, or it is the moment at which the row itself was added. ``not_before`` goes by the clock as it is.

From-states: pending and committed rows, compared once more by the write; the state stays. Rows under a lease get a
whole one from now on, which ends no earlier than what their holder counts by its own clock. If the process dies, the
next run finds the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from outbox.lifecycle import Move, sources_of
from outbox.schema import DUE_FIRST, claimable, outbox, unsettled
from outbox.store.change import Change, again_after, seconds
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.notifications import announce

#: Rows of one look, and looks of one run where each finds rows to bring back.
_ROWS: Final = 1_000
_LOOKS: Final = 20
#: Seconds by which the clocks of two servers may differ that one database has, at once or one after another: so far
#: ahead a row is of the present.
_APART: Final = 1.0
_START: Final = (datetime(1970, 1, 1, tzinfo=UTC), 0)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far ahead ``available_at`` may lie, in seconds."""

    #: The longest lease: a row that is brought back under one gets so much.
    lease: float
    #: The longest of all, with their jitter.
    longest: float


class ClockSweep:
    """Remembers where its tours have come to; for one thread."""

    def __init__(self, database: Database, reach: Reach) -> None:
        self._database = database
        self._reach = reach
        # Refused rows wait on: the relay that gave them their back-off may have a longer one than this one.
        again = sa.case((outbox.c.lease_id.is_not(None), seconds()), (outbox.c.failures > 0, _longest()), else_=0.0)
        pending, committed = sources_of(Move.COMMIT), sources_of(Move.REOPEN)
        attempts = Change(
            database.dialect, pending, compare=lambda _: _pending_ahead(), values=lambda _: again_after(again)
        )
        decisions = Change(
            database.dialect,
            committed,
            compare=lambda _: _beyond(),
            values=lambda _: {"available_at": utc_after(seconds())},
        )
        self._tours = (_Tour(claimable(), _pending_ahead(), attempts), _Tour(unsettled(), _beyond(), decisions))

    def run(self) -> int:
        """Looks at the next rows that are not due yet; how many were brought back."""
        brought = 0
        for _ in range(_LOOKS):
            # One transaction for all looks: nearly always there is nothing else to do.
            with self._database.transaction(index_order=True) as connection:
                ahead = [(tour, tour.look(connection, self._reach)) for tour in self._tours]
            if not any(row_ids for _, row_ids in ahead):
                break
            brought += sum(self._bring_back(tour, row_ids) for tour, row_ids in ahead if row_ids)
        return brought

    def _bring_back(self, tour: "_Tour", row_ids: Iterable[int]) -> int:
        with self._database.transaction() as connection:
            announce(connection)
            return len(tour.change.apply(connection, [{"id": row_id} for row_id in row_ids], **_told(self._reach)))


class _Tour:
    """The rows of one index that are not due yet, so many at a time; after the last one it begins anew."""

    def __init__(self, which: sa.ColumnElement[bool], ahead: sa.ColumnElement[bool], change: Change) -> None:
        self.change = change
        self._after = _START
        at, row_id = sa.bindparam("at", type_=outbox.c.available_at.type), sa.bindparam("after", type_=outbox.c.id.type)
        follows = sa.and_(outbox.c.available_at >= at, sa.or_(outbox.c.available_at > at, outbox.c.id > row_id))
        rows: Any = sa.select(*DUE_FIRST, sa.type_coerce(ahead, sa.Boolean()).label("ahead"))
        self._next = rows.where(which, outbox.c.available_at > utc_now(), follows).order_by(*DUE_FIRST).limit(_ROWS)

    def look(self, connection: sa.Connection, reach: Reach) -> list[int]:
        """Those of the next rows that are to be brought back."""
        at, after = self._after
        rows = connection.execute(self._next, {"at": at, "after": after, **_told(reach)}).all()
        self._after = (rows[-1].available_at, rows[-1].id) if len(rows) == _ROWS else _START
        return [row.id for row in rows if row.ahead]


def _told(reach: Reach) -> dict[str, float]:
    return {"seconds": reach.lease, "longest": reach.longest}


def _beyond() -> sa.ColumnElement[bool]:
    return outbox.c.available_at > utc_after(_longest())


def _longest() -> sa.BindParameter[float]:
    return sa.bindparam("longest", type_=sa.Float())


def _pending_ahead() -> sa.ColumnElement[bool]:
    """``not_before`` aside, which may be any time."""
    scheduled = sa.and_(outbox.c.not_before.is_not(None), outbox.c.available_at <= outbox.c.not_before)
    as_added = sa.and_(
        outbox.c.lease_id.is_(None),
        outbox.c.available_at == outbox.c.created_at,
        outbox.c.available_at > utc_after(_APART),
    )
    return sa.and_(~scheduled, sa.or_(_beyond(), as_added))
