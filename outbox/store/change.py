"""How rows change: by compare-and-set over a batch, in the order of their ids, skipping rows that others hold."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from outbox.lifecycle import Move, State, sources_of, target_of
from outbox.message import Mode
from outbox.schema import outbox
from outbox.store.clock import earliest, latest, utc_after, utc_now
from outbox.store.given import given, selecting, updating

#: From the given rows' columns to a condition, and to what is set.
Compare = Callable[[Any], ColumnElement[bool]]
Values = Callable[[Any], Mapping[str, Any]]


class Change:
    """A state-changing write over many rows: which states it may leave, what it compares, what it sets.

    The rows that pass are locked in the order of their ids (two batches can never wait for each other), rows that
    another transaction holds are skipped; then the locked ones are written. PostgreSQL does both in one statement, the
    others in two within the caller's transaction (SQLite in one, where nothing else is told). The ids that come back
    are the ones that changed; one that is missing was decided by somebody else, which is a normal outcome.

    ``compare`` and ``values`` are functions of the given rows' columns, so that each row brings values of its own.
    """

    def __init__(
        self,
        dialect: str,
        sources: Iterable[State],
        *,
        columns: Mapping[str, type] | None = None,
        compare: Compare,
        values: Values,
        wait: bool = False,
        telling: Mapping[str, ColumnElement[Any]] = MappingProxyType({}),
    ) -> None:
        """``telling``: what else comes back of the rows that changed, as it was before, under these names."""
        self._given = given(dialect, {"id": int, **(columns or {})})
        rows = self._given.table
        conditions = (_may_leave(sources), compare(rows.c))
        told = [value.label(name) for name, value in telling.items()]
        passing = selecting(dialect, rows, outbox.c.id, *(column for column in rows.c if column.name != "id"), *told)
        passing = passing.where(*conditions).order_by(outbox.c.id)
        self._lock = passing.with_for_update(of=outbox, skip_locked=not wait)
        # SQLite's transaction has the one write lock already, and its RETURNING names what is written alone.
        self._at_once = dialect == "postgresql" or (dialect == "sqlite" and not telling)
        target = self._lock.cte("locked") if dialect == "postgresql" else rows
        self._write = updating(dialect, target, values(target.c))
        if self._at_once:
            self._write = self._write.returning(outbox.c.id, *(target.c[name] for name in telling))
        if self._at_once and dialect == "sqlite":
            self._write = self._write.where(*conditions)

    @classmethod
    def of_move(cls, dialect: str, move: Move, **how: Any) -> Self:
        """A change that makes ``move``: its sources and its target come from the lifecycle."""
        values = how.pop("values")
        return cls(dialect, sources_of(move), values=lambda rows: {"state": target_of(move), **values(rows)}, **how)

    def apply(self, connection: Connection, rows: Iterable[Mapping[str, object]], **parameters: object) -> list[int]:
        """Changes the rows that pass; the ids of those, in order."""
        return sorted([row[0] for row in self._changed(connection, rows, parameters)])

    def _changed(
        self, connection: Connection, rows: Iterable[Mapping[str, object]], parameters: dict[str, Any]
    ) -> Sequence[sa.Row[Any]]:
        if not (given_rows := list(rows)):
            return []
        if self._at_once:
            return connection.execute(self._write, parameters | self._given.batch(given_rows)).all()
        by_id = {row["id"]: row for row in given_rows}
        changed = connection.execute(self._lock, parameters | self._given.batch(by_id.values())).all()
        if changed:
            connection.execute(self._write, parameters | self._given.batch(by_id[row.id] for row in changed))
        return changed


@dataclass(frozen=True, slots=True)
class Left:
    """The rows that ended, and the lanes in which they stood; a dead row may still hold its own."""

    ids: list[int]
    lanes: frozenset[str]


class Ending(Change):
    """A change after which rows owe nothing: they leave their lanes, but for those that ``holds`` is true of."""

    def __init__(
        self, dialect: str, sources: Iterable[State], *, values: Values, holds: Compare | None = None, **how: Any
    ) -> None:
        def leaving(rows: Any) -> Mapping[str, Any]:
            """Beside what the ending itself sets."""
            kept = None if holds is None else sa.case((holds(rows), outbox.c.open_lane), else_=sa.null())
            return {**values(rows), "open_lane": kept, "parked": sa.false()}

        super().__init__(dialect, sources, values=leaving, telling={"lane_left": outbox.c.open_lane}, **how)

    def end(self, connection: Connection, rows: Iterable[Mapping[str, object]], **parameters: object) -> Left:
        """Ends the rows that pass; their lanes go on in the same transaction (``Lanes.go_on``)."""
        ended = self._changed(connection, rows, parameters)
        lanes = frozenset([row[-1] for row in ended if row[-1] is not None])
        return Left(sorted([row[0] for row in ended]), lanes)


def _may_leave(sources: Iterable[State]) -> ColumnElement[bool]:
    """The row is in one of these states, said so that no partial index matches: the rows are named by id, and a planner
    without fresh statistics would rather walk all the dead entries of a small partial index.

    Of a CASE it expects that half of the rows pass. Where it expects none or one, as of other expressions, it compares
    each row of a table that was never analyzed with each row of the batch.
    """
    return sa.case((outbox.c.state.in_(list(sources)), sa.true()), else_=sa.false())


def seconds() -> sa.BindParameter[float]:
    """The duration that a statement is given."""
    return sa.bindparam("seconds", type_=sa.Float())


def own_attempt(rows: Any) -> ColumnElement[bool]:
    """The row is still held by the attempt that the given token and lease id name."""
    return sa.and_(outbox.c.token == rows.token, outbox.c.lease_id == rows.lease)


def due() -> ColumnElement[bool]:
    """By the database's clock the row may be worked on: whatever lease it was under is over."""
    return outbox.c.available_at <= utc_now()


def no_attempt() -> dict[str, Any]:
    """No half of this row may win any more: the check-back answers ROLLBACK to each."""
    return {"token": None, "lease_id": None}


def attempt_failed(rows: Any) -> dict[str, Any]:
    """The attempt under the given lease id sent nothing."""
    return {"token": earlier_token(rows), "lease_id": None}


def earlier_token(rows: Any) -> ColumnElement[Any]:
    """The token that stays once the attempt under the given lease id is known to have sent nothing.

    Of a plain row that is the token of an earlier attempt without an outcome, if there was one (see ``store.claims``):
    that one may have sent what cannot be called back. Of any other row it is NULL.
    """
    return _of_plain(sa.func.nullif(outbox.c.token, rows.lease))


def nobody_attempts() -> dict[str, Any]:
    """As ``no_attempt``, for a row that nobody leases. A plain row that has a token keeps it: it tells of an attempt
    without an outcome."""
    return {"token": _of_plain(outbox.c.token), "lease_id": None}


def _of_plain(token: ColumnElement[Any]) -> ColumnElement[Any]:
    return sa.case((outbox.c.mode == Mode.PLAIN, token), else_=sa.null())


def again_after(delay: Any) -> dict[str, Any]:
    """When the row may be claimed again, never before its own ``not_before``."""
    due = utc_after(delay)
    return {"available_at": latest(sa.func.coalesce(outbox.c.not_before, due), due)}


def in_place() -> ColumnElement[Any]:
    """Available since the row could first be claimed: by age it stands before all that came after it.

    Where the clock was set back since, that moment is still to come: then from now on.
    """
    return earliest(sa.func.coalesce(outbox.c.not_before, outbox.c.created_at), utc_now())


def fresh_lease() -> dict[str, Any]:
    """A lease under the id ``:new_lease`` that is over in ``:seconds``."""
    return {
        "lease_id": sa.bindparam("new_lease", type_=sa.String()),
        "available_at": utc_after(seconds()),
    }
