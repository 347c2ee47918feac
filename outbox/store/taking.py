"""How a claim gets its rows: due ones, oldest first, that no transaction holds, leased and read."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.message import Mode
from outbox.schema import DUE_FIRST, claimable, outbox
from outbox.store.attempt import CLAIMED
from outbox.store.change import due, seconds
from outbox.store.clock import utc_after, utc_now
from outbox.store.given import given, selecting, updating
from outbox.store.lookback import BACK, Look, Lookback, within_look

#: Leases rows and reads them; the rows' columns are those of ``CLAIMED``.
Take = Callable[[Connection, Mapping[str, Any], Look], list[Any]]


class Taking:
    """The statements of one dialect."""

    def __init__(self, dialect: str) -> None:
        take = _take_at_once if dialect == "postgresql" else partial(_TakeInSteps, dialect)
        self._whole: Take = take(bounded=False)
        #: Begins where the lookback says, and tells how far it came. The moments for that cost each claim a little, so
        #: there are two statements.
        self._bounded: Take = take(bounded=True)

    def take(self, connection: Connection, parameters: Mapping[str, Any], lookback: Lookback) -> list[Any]:
        """Leases up to ``rows`` rows of at most ``bytes``, one at least, for ``seconds`` under the id ``fresh``; their
        columns begin with ``CLAIMED``."""
        take = self._bounded if lookback.matters else self._whole
        with lookback.look() as look:
            return take(connection, parameters, look)


def _candidates(*, bounded: bool) -> Any:
    """Due rows and their sizes, oldest first, locked; rows that another transaction holds are skipped."""
    size = sa.func.length(outbox.c.payload).label("size")
    rows = sa.select(outbox.c.id, outbox.c.available_at, size).where(claimable(), due())
    rows = rows.where(within_look()) if bounded else rows
    return rows.order_by(*DUE_FIRST).limit(sa.bindparam("rows")).with_for_update(skip_locked=True)


def _leased() -> dict[str, Any]:
    fresh = sa.bindparam("fresh", type_=outbox.c.token.type)
    return {
        "token": sa.case((outbox.c.mode == Mode.PLAIN, sa.func.coalesce(outbox.c.token, fresh)), else_=fresh),
        "lease_id": fresh,
        "available_at": utc_after(seconds()),
        "attempts": outbox.c.attempts + 1,
    }


def _take_at_once(*, bounded: bool) -> Take:
    """One statement, for PostgreSQL."""
    found = _candidates(bounded=bounded).cte("candidates")
    order = tuple(found.c[column.name] for column in DUE_FIRST)
    measured = sa.select(
        found.c.id,
        found.c.available_at,
        sa.func.row_number().over(order_by=order).label("place"),
        sa.func.sum(found.c.size).over(order_by=order).label("total"),
    ).subquery("measured")
    fits = sa.or_(measured.c.total <= sa.bindparam("bytes"), measured.c.place == 1)
    chosen = sa.select(measured.c.id, measured.c.available_at, measured.c.place).where(fits).cte("chosen")
    take = outbox.update().where(outbox.c.id == chosen.c.id).values(**_leased())
    moments = (chosen.c.available_at, utc_now()) if bounded else ()
    statement = take.returning(*CLAIMED, chosen.c.place, *moments)
    by_place = itemgetter(len(CLAIMED))

    def taken(connection: Connection, parameters: Mapping[str, Any], look: Look) -> list[Any]:
        """The leased rows, oldest first."""
        told = {BACK: look.seconds} if bounded else {}
        rows = sorted(connection.execute(statement, {**parameters, **told}).all(), key=by_place)
        _note_end(look, rows[-1][-2:] if rows and bounded else None, some=bool(rows))
        return rows

    return taken


class _TakeInSteps:
    """Candidates, lease and look in three statements, where UPDATE cannot return what it joined; SQLite's returns what
    it wrote, which spares the look."""

    def __init__(self, dialect: str, *, bounded: bool) -> None:
        self._given, candidates = given(dialect, {"id": int}), _candidates(bounded=bounded)
        chosen = self._given.table
        self._bounded = bounded
        moments = (outbox.c.available_at, utc_now().label("now")) if bounded else ()
        self._candidates = candidates.with_only_columns(outbox.c.id, candidates.selected_columns["size"], *moments)
        lease = updating(dialect, chosen, _leased())
        returns = dialect == "sqlite"
        self._lease: Any = lease.returning(*CLAIMED) if returns else lease
        self._read = None if returns else selecting(dialect, chosen, *CLAIMED)

    def __call__(self, connection: Connection, parameters: Mapping[str, Any], look: Look) -> list[Any]:
        """The leased rows, oldest first."""
        told = {BACK: look.seconds} if self._bounded else {}
        found = connection.execute(self._candidates, {"rows": parameters["rows"], **told}).all()
        chosen = _within(parameters["bytes"], found)
        last = found[len(chosen) - 1][-2:] if chosen and self._bounded else None
        _note_end(look, last, some=bool(chosen))
        if not chosen:
            return []
        ids = self._given.ids(chosen)
        leased = connection.execute(self._lease, {**parameters, **ids})
        rows = leased if self._read is None else connection.execute(self._read, ids)
        by_id = {row[0]: row for row in rows}
        return [by_id[row_id] for row_id in chosen]


def _note_end(look: Look, last: Any, *, some: bool) -> None:
    """How far the look came: past all that is due, if it found nothing (not ``some``); else to the last row, whose
    ``available_at`` and moment only the bounded statement tells (``last``)."""
    if last is not None:
        look.ended_at(*last)
    elif some:
        look.ended = math.inf


def _within(max_bytes: int, sizes: Iterable[Any]) -> list[int]:
    """The ids of the first rows that fit; the first one always does, or it could never be sent."""
    chosen: list[int] = []
    total = 0
    for candidate in sizes:
        total += candidate.size
        if chosen and total > max_bytes:
            break
        chosen.append(candidate.id)
    return chosen
