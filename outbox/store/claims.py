"""Claims: how a relay gets rows under a lease, and keeps them.

From-states and comparisons: *claim* takes rows in the claim index (pending, due, not parked) that no transaction holds;
*renew* compares token and lease id. If the relay dies before a claim commits, nothing happened; after it, the lease
runs out and the next claim draws a new token, which turns every half of the dead attempt into a superseded one.
A plain message cannot be called back: the token of an attempt without an outcome stays with its row, under the lease
ids of later ones, until the row is delivered. Of a lane only the head is shipped; rows that were leased behind it are
parked right after, in a transaction of its own (``store.lanes``).
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from outbox.clock import monotonic
from outbox.identity import fresh_token
from outbox.lifecycle import Move, sources_of
from outbox.message import BODY_BYTES, Mode
from outbox.schema import claimable, outbox
from outbox.store.change import Change, due, own_attempt, seconds
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.given import given, selecting, updating
from outbox.store.lanes import Lanes
from outbox.store.lookback import Look, Lookback, not_before


class Attempt(NamedTuple):
    """A row under a fresh lease, as the relay ships it; a tuple, since a claim makes hundreds."""

    row_id: int
    topic: str
    key: str
    tag: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    lane: str | None
    mode: Mode
    #: Refusals so far.
    failures: int
    #: Claims so far, this one included.
    attempts: int
    token: str
    lease_id: str


_CLAIMED = (
    outbox.c.id,
    outbox.c.topic,
    outbox.c.key,
    outbox.c.tag,
    outbox.c.payload,
    outbox.c.content_type,
    sa.cast(outbox.c.headers, sa.Text()).label("headers"),  # most rows have none, which needs no parser
    outbox.c.lane,
    outbox.c.mode,
    outbox.c.failures,
    outbox.c.attempts,
    outbox.c.token,
)
_log = logging.getLogger(__name__)

_NO_HEADERS: Final = "{}"
_MODES: Final = {mode.value: mode for mode in Mode}

#: Rounds of one claim at most, where rows that it meets have to be parked, and seconds after which one that has rows to
#: ship begins no other: each parks up to a thousand rows in some 30 ms, and heads do not wait for all that is behind.
_ROUNDS = 16
_LONG = 0.1

#: How far back a claim looks, in seconds.
_BACK: Final = "back"

#: Leases rows and reads them; the rows' columns are those of ``_CLAIMED``.
Take = Callable[[Connection, Mapping[str, Any], Look], list[Any]]


class Claims:
    """The statements of the claim; each method is one transaction."""

    def __init__(self, database: Database, lookback: Lookback | None = None) -> None:
        """``lookback``: of the one thread that claims."""
        self._database = database
        self._lookback = lookback or Lookback()
        self._lanes = Lanes(database.dialect)
        self._take, self._take_from = (_take(database.dialect, from_there=it) for it in (False, True))
        self._renew = Change(
            database.dialect,
            sources_of(Move.COMMIT),
            columns={"token": str, "lease": str},
            compare=own_attempt,
            values=lambda _: {"available_at": utc_after(seconds())},
        )

    def claim(self, limit: int, max_bytes: int, lease: float) -> list[Attempt]:
        """Up to ``limit`` due rows of together at most ``max_bytes`` (one row at least), leased for ``lease`` seconds.

        Oldest first. The transaction may be lost in a crash of the database server: then nobody holds the lease, and
        the halves sent under it are superseded by the next claim.
        """
        attempts: list[Attempt] = []
        room = max_bytes
        long = monotonic() + _LONG
        for _ in range(_ROUNDS):
            taken, parked = self._round(limit - len(attempts), room, lease)
            attempts += taken
            room -= sum([len(it.payload) for it in taken])
            if not parked or len(attempts) == limit or (attempts and (room < BODY_BYTES or monotonic() > long)):
                break
        return attempts

    def _round(self, limit: int, max_bytes: int, lease: float) -> tuple[list[Attempt], int]:
        """The rows to ship, and how many others were met behind the heads of their lanes.

        Those are parked in a transaction of its own, which holds no row while it waits for the locks of lanes. If it
        fails, or the relay dies before it, they are under a lease that runs out, and are met again; heads are shipped.
        """
        # A fresh token is the lease id, and one draw serves the whole claim: a row id and a token name one attempt.
        fresh = fresh_token()
        parameters = {"rows": limit, "bytes": max_bytes, "seconds": lease, "fresh": fresh}
        with self._database.transaction(durable=False, index_order=True) as connection:
            take = self._take_from if self._lookback.matters else self._take
            with self._lookback.look() as look:
                rows = take(connection, parameters, look)
            behind = self._lanes.behind(connection, rows)
        parked = 0
        if behind:
            try:
                with self._database.transaction(durable=False, index_order=True) as connection:
                    behind = self._lanes.park(connection, behind, fresh, len(rows))
                parked = len(behind)
            except SQLAlchemyError as error:
                _log.warning("%d rows behind the heads of their lanes are not parked: %s", len(behind), error)
        return [_attempt(row, fresh) for row in rows if row[0] not in behind], parked

    def renew(self, attempts: Iterable[Attempt], lease: float) -> set[int]:
        """Leases the attempts for ``lease`` seconds from now; the ids of the rows that are still theirs."""
        with self._database.transaction(durable=False) as connection:
            rows = [{"id": it.row_id, "token": it.token, "lease": it.lease_id} for it in attempts]
            return set(self._renew.apply(connection, rows, seconds=lease))


def _candidates(*, from_there: bool) -> Any:
    """Due rows and their sizes, oldest first, locked; rows that another transaction holds are skipped."""
    size = sa.func.length(outbox.c.payload).label("size")
    rows = sa.select(outbox.c.id, outbox.c.available_at, size).where(claimable(), due())
    rows = rows.where(not_before(_BACK)) if from_there else rows
    ordered = rows.order_by(outbox.c.available_at, outbox.c.id)
    return ordered.limit(sa.bindparam("rows")).with_for_update(skip_locked=True)


def _leased() -> dict[str, Any]:
    fresh = sa.bindparam("fresh", type_=outbox.c.token.type)
    return {
        "token": sa.case((outbox.c.mode == Mode.PLAIN, sa.func.coalesce(outbox.c.token, fresh)), else_=fresh),
        "lease_id": fresh,
        "available_at": utc_after(seconds()),
        "attempts": outbox.c.attempts + 1,
    }


def _take(dialect: str, *, from_there: bool) -> Take:
    """``from_there``: looks back as far as it is told, and says how far it came; more than a claim needs otherwise."""
    if dialect == "postgresql":
        return _take_at_once(from_there=from_there)
    return _TakeInSteps(dialect, from_there=from_there)


def _take_at_once(*, from_there: bool) -> Take:
    """One statement, for PostgreSQL."""
    found = _candidates(from_there=from_there).cte("candidates")
    order = (found.c.available_at, found.c.id)
    measured = sa.select(
        found.c.id,
        found.c.available_at,
        sa.func.row_number().over(order_by=order).label("place"),
        sa.func.sum(found.c.size).over(order_by=order).label("total"),
    ).subquery("measured")
    fits = sa.or_(measured.c.total <= sa.bindparam("bytes"), measured.c.place == 1)
    chosen = sa.select(measured.c.id, measured.c.available_at, measured.c.place).where(fits).cte("chosen")
    take = outbox.update().where(outbox.c.id == chosen.c.id).values(**_leased())
    moments = (chosen.c.available_at, utc_now()) if from_there else ()
    statement = take.returning(*_CLAIMED, chosen.c.place, *moments)
    by_place = itemgetter(len(_CLAIMED))

    def taken(connection: Connection, parameters: Mapping[str, Any], look: Look) -> list[Any]:
        """The leased rows, oldest first."""
        told = {_BACK: look.seconds} if from_there else {}
        rows = sorted(connection.execute(statement, {**parameters, **told}).all(), key=by_place)
        _note_end(look, rows[-1][-2:] if rows and from_there else None, some=bool(rows))
        return rows

    return taken


class _TakeInSteps:
    """Candidates, lease and look in three statements, where UPDATE cannot return what it joined; SQLite's returns what
    it wrote, which spares the look."""

    def __init__(self, dialect: str, *, from_there: bool) -> None:
        self._given, candidates = given(dialect, {"id": int}), _candidates(from_there=from_there)
        chosen = self._given.table
        self._from_there = from_there
        moments = (outbox.c.available_at, utc_now().label("now")) if from_there else ()
        self._candidates = candidates.with_only_columns(outbox.c.id, candidates.selected_columns["size"], *moments)
        lease = updating(dialect, chosen, _leased())
        returns = dialect == "sqlite"
        self._lease: Any = lease.returning(*_CLAIMED) if returns else lease
        self._read = None if returns else selecting(dialect, chosen, *_CLAIMED)

    def __call__(self, connection: Connection, parameters: Mapping[str, Any], look: Look) -> list[Any]:
        """The leased rows, oldest first."""
        told = {_BACK: look.seconds} if self._from_there else {}
        found = connection.execute(self._candidates, {"rows": parameters["rows"], **told}).all()
        chosen = _within(parameters["bytes"], found)
        last = found[len(chosen) - 1][-2:] if chosen and self._from_there else None
        _note_end(look, last, some=bool(chosen))
        if not chosen:
            return []
        ids = self._given.ids(chosen)
        leased = connection.execute(self._lease, {**parameters, **ids})
        rows = leased if self._read is None else connection.execute(self._read, ids)
        by_id = {row[0]: row for row in rows}
        return [by_id[row_id] for row_id in chosen]


def _note_end(look: Look, last: Any, *, some: bool) -> None:
    """How far the look came: all that is due, if it found nothing; else to the last row, if its moments are told."""
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


def _attempt(row: Any, fresh: str) -> Attempt:
    row_id, topic, key, tag, payload, content_type, given_headers, lane, mode, failures, attempts, token, *_ = row
    headers = {} if given_headers == _NO_HEADERS else json.loads(given_headers)
    mode = _MODES[mode]
    return Attempt(
        row_id, topic, key, tag, payload, content_type, headers, lane, mode, failures, attempts, token, fresh
    )
