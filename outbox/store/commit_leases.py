"""Commit leases: who may carry a decision out, and what becomes of it.

COMMIT may be sent only by the holder of a row's commit lease. ``Decisions.decide`` gives it to the relay; here it is
adopted (pending -> committed, for a half whose attempt ran out), taken over once it is over, and put to an end.
From-states and comparisons: *adopt* leaves ``pending``, compares the token and that the lease is over; *take over*
leaves ``committed``, compares the half and that the lease is over; *settle* compares the half and nothing else, since
delivered is true whoever says it; *presume*, *reopen*, *give up* and *postpone* compare the lease id, which the next
holder replaces. Taking a lease is durable: one that a crash of the server forgot would have two holders.
If the holder dies before any of them, its lease runs out and the next holder looks the half up first.
What ends a row un-parks the next one of its lane in the same transaction (``store.lanes``); *give up* keeps the place
of a row whose topic's lanes are held.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.brokers.base import Half
from outbox.identity import fresh_token
from outbox.lifecycle import Move, State, sources_of, target_of
from outbox.schema import DUE_FIRST, REASON_LENGTH, outbox, unsettled
from outbox.store.change import (
    Change,
    Ending,
    due,
    fresh_lease,
    no_attempt,
    seconds,
)
from outbox.store.clock import utc_after, utc_now
from outbox.store.conflicts import repeated
from outbox.store.database import Database, plan_freely
from outbox.store.given import AnyText, given, selecting
from outbox.store.halves import HALF, chosen_half, half_columns, half_of, half_values, no_half
from outbox.store.lanes import HoldsLane, Lanes, always
from outbox.store.lookback import BACK, MARGIN, within_look
from outbox.store.next_due import NextDue
from outbox.store.writable import read_only
from outbox.verdict import RowView


@dataclass(frozen=True, slots=True)
class Holding:
    """A committed row whose commit lease we hold, and its winning half."""

    row_id: int
    half: Half
    lease_id: str
    #: When the database chose the half.
    decided_at: datetime
    #: Seconds since then, by the database's clock.
    age: float = 0.0


_HELD = (outbox.c.id, *HALF, outbox.c.decided_at)


class CommitLeases:
    """The statements about committed rows; each method is one transaction."""

    def __init__(self, database: Database, holds_lane: HoldsLane = always) -> None:
        self._database = database
        self._holds_lane = holds_lane
        self._lanes = Lanes(database.dialect)
        self._next_due = NextDue(database)
        self._changes = _Changes(database.dialect)
        self._read = sa.select(
            outbox.c.state,
            outbox.c.token,
            outbox.c.half_id,
            sa.type_coerce(due(), sa.Boolean()).label("lease_over"),
            outbox.c.presumed,
            read_only(database.dialect).label("read_only"),
        ).where(outbox.c.id == sa.bindparam("row_id"))
        self._given = given(database.dialect, {"id": int})
        self._held = selecting(database.dialect, self._given.table, *_HELD, utc_now().label("now"))
        self._due = (
            sa.select(outbox.c.id, outbox.c.half_id)
            .where(unsettled(), within_look())
            .where(outbox.c.available_at <= utc_after(sa.bindparam("since", type_=sa.Float())))
            .order_by(*DUE_FIRST)
            .limit(sa.bindparam("rows"))
        )

    def read(self, row_id: int) -> RowView | None:
        """The row as a verdict sees it; None: there is no such row, or the server takes no writes.

        A standby, and a primary that was demoted, may show the row as it was before another server went on with it.
        """
        with self._database.look() as connection:
            row = connection.execute(self._read, {"row_id": row_id}).one_or_none()
            if row is not None and row.read_only:
                connection.invalidate()  # the server keeps it, while its name may lead to another one
        if row is None or row.read_only:
            return None
        return RowView(State(row.state), row.token, row.half_id, lease_over=row.lease_over, presumed=row.presumed)

    def adopt(self, row_id: int, token: str, half: Half, lease: float) -> Holding | None:
        """Chooses the half of an attempt that ran out, and takes the commit lease; None: somebody else was first."""
        fresh = fresh_token()
        row = {"id": row_id, "token": token, **half_values(half)}
        with self._database.transaction() as connection:
            changed = self._changes.adopt.apply(connection, [row], seconds=lease, new_lease=fresh)
            return self._holdings(connection, changed, fresh).pop() if changed else None

    def take_over(self, row_id: int, half_id: str, lease: float) -> Holding | None:
        """Takes the commit lease of the row that chose this half, once the earlier one is over; None: it moved on."""
        with self._database.transaction() as connection:
            return next(iter(self._take(connection, [(row_id, half_id)], lease)), None)

    def take_over_due(self, limit: int, lease: float, overdue: float = 0.0) -> list[Holding]:
        """Takes up to ``limit`` commit leases that are over since ``overdue`` seconds, the longest over first.

        A look goes before it: most of the time there is none.
        """
        over_in = self._next_due.commit_lease()
        if over_in is None or over_in > -overdue:
            return []
        with self._database.transaction(index_order=True) as connection:
            # From the row that was seen on: before it there are only entries of rows that have ended.
            told = {"rows": limit, "since": -overdue, BACK: MARGIN - over_in}
            due = connection.execute(self._due, told).all()
            plan_freely(connection)
            return self._take(connection, [(row.id, row.half_id) for row in due], lease)

    def settle(self, halves: Iterable[tuple[int, str]], *, tell: bool = True) -> set[int]:
        """Marks rows (row id, id of the half that the broker made visible) as delivered; the ids that changed.

        ``tell``: relays that sleep are told of lanes that go on; one that looks at the rows by itself then need not be.
        """
        rows = [{"id": row_id, "half_id": half_id} for row_id, half_id in halves]

        def settled() -> set[int]:
            with self._database.transaction(durable=False) as connection:
                return set(self._lanes.end(connection, self._changes.settle, rows, tell=tell))

        return repeated(settled)

    def presume(self, holding: Holding) -> bool:
        """Marks the row as delivered without the broker's word: nobody asked about its half for too long."""
        return self._end(self._changes.presume, _held(holding, "presumed: the broker stopped asking"))

    def reopen(self, holding: Holding, reason: str) -> bool:
        """Puts the row back to be published by a new attempt; its half can no longer win."""
        return self._keep(self._changes.reopen, holding, reason)

    def give_up(self, holding: Holding, reason: str) -> bool:
        """Ends a row whose outcome cannot be known any more; an operator decides."""
        holds = int(self._holds_lane(holding.half.topic))
        return self._end(self._changes.give_up, _held(holding, reason) | {"holds": holds})

    def postpone(self, holding: Holding, reason: str, seconds: float) -> bool:
        """Keeps the row committed and lets nobody act on it for ``seconds``."""
        return self._keep(self._changes.postpone, holding, reason, seconds=seconds)

    def _take(self, connection: Connection, halves: Iterable[tuple[int, str]], lease: float) -> list[Holding]:
        """The half is compared as well: who was asked about one half must not come to hold the lease of another."""
        fresh = fresh_token()
        rows = [{"id": row_id, "half_id": half_id} for row_id, half_id in halves]
        changed = self._changes.take_over.apply(connection, rows, seconds=lease, new_lease=fresh)
        return self._holdings(connection, changed, fresh)

    def _holdings(self, connection: Connection, row_ids: list[int], lease_id: str) -> list[Holding]:
        rows = connection.execute(self._held, self._given.ids(row_ids)).all()
        return [_holding(row, lease_id) for row in rows]

    def _keep(self, change: Change, holding: Holding, reason: str, **parameters: object) -> bool:
        with self._database.transaction() as connection:
            return bool(change.apply(connection, [_held(holding, reason)], **parameters))

    def _end(self, ending: Ending, row: Mapping[str, object]) -> bool:
        with self._database.transaction() as connection:
            return bool(self._lanes.end(connection, ending, [row]))


class _Changes:
    """The writes of this module, built once per dialect."""

    def __init__(self, dialect: str) -> None:
        self.adopt = _adopt(dialect)
        self.take_over = _take_over(dialect)
        self.settle = _settle(dialect)
        self.presume = _presume(dialect)
        self.reopen = _reopen(dialect)
        self.give_up = _give_up(dialect)
        self.postpone = _postpone(dialect)


#: What the holder of a lease names.
_HELD_COLUMNS: dict[str, type] = {"lease": str, "reason": AnyText}


def _holder(rows: Any) -> Any:
    return outbox.c.lease_id == rows.lease


def _adopt(dialect: str) -> Change:
    return Change.of_move(
        dialect,
        Move.COMMIT,
        columns={"token": str, **half_columns()},
        compare=lambda rows: sa.and_(outbox.c.token == rows.token, due()),
        values=chosen_half,
    )


def _take_over(dialect: str) -> Change:
    return Change(
        dialect,
        sources_of(Move.REOPEN),
        columns={"half_id": str},
        compare=lambda rows: sa.and_(outbox.c.half_id == rows.half_id, due()),
        values=lambda _: fresh_lease(),
    )


def _held(holding: Holding, reason: str) -> dict[str, object]:
    return {"id": holding.row_id, "lease": holding.lease_id, "reason": reason[:REASON_LENGTH]}


def _delivered() -> dict[str, Any]:
    return {"state": target_of(Move.DELIVER), "delivered_at": utc_now(), "lease_id": None}


def _settle(dialect: str) -> Ending:
    return Ending(
        dialect,
        sources_of(Move.REOPEN),
        columns={"half_id": str},
        compare=lambda rows: outbox.c.half_id == rows.half_id,
        values=lambda _: _delivered(),
    )


def _presume(dialect: str) -> Ending:
    return Ending(
        dialect,
        sources_of(Move.REOPEN),
        columns=_HELD_COLUMNS,
        compare=_holder,
        values=lambda rows: {**_delivered(), "presumed": sa.true(), "reason": rows.reason},
    )


def _reopen(dialect: str) -> Change:
    return Change.of_move(
        dialect,
        Move.REOPEN,
        columns=_HELD_COLUMNS,
        compare=_holder,
        values=lambda rows: {"reason": rows.reason, **no_attempt(), **no_half(), "available_at": utc_now()},
    )


def _give_up(dialect: str) -> Ending:
    return Ending.of_move(
        dialect,
        Move.GIVE_UP,
        columns={**_HELD_COLUMNS, "holds": int},
        compare=_holder,
        holds=lambda rows: rows.holds == 1,
        values=lambda rows: {"reason": rows.reason, **no_attempt()},
    )


def _postpone(dialect: str) -> Change:
    return Change(
        dialect,
        sources_of(Move.REOPEN),
        columns=_HELD_COLUMNS,
        compare=_holder,
        values=lambda rows: {"reason": rows.reason, "available_at": utc_after(seconds())},
    )


def _holding(row: Any, lease_id: str) -> Holding:
    return Holding(row.id, half_of(row), lease_id, row.decided_at, (row.now - row.decided_at).total_seconds())
