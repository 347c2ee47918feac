"""What operators ask and do: figures, lists, requeue, cancel.

From-states come from the lifecycle: *cancel* leaves ``pending``, *requeue* leaves ``cancelled`` and ``dead``. Both set
the token to NULL, so that every half of the row, sent or on its way, gets ROLLBACK. A plain message that may have left
cannot be called back, so a plain row is not cancelled while an attempt is under way, or once one had no outcome (its
relay died, or no answer came); its token tells, and is kept through a requeue. A cancelled row leaves its lane, which
goes on in the same transaction (``store.lanes``); a row that left its lane comes back to it only out of order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import Move, State, sources_of
from outbox.message import Mode
from outbox.schema import REASON_LENGTH, outbox, set_aside, state_in
from outbox.store.change import Change, Ending, again_after, no_attempt, nobody_attempts
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.gauges import Figures, Gauges
from outbox.store.given import AnyText
from outbox.store.halves import no_half
from outbox.store.lanes import Lanes, lane_key_of_row
from outbox.store.notifications import announce
from outbox.store.topics import named_topics

_LISTED = (
    outbox.c.id,
    outbox.c.topic,
    outbox.c.key,
    outbox.c.state,
    outbox.c.mode,
    outbox.c.attempts,
    outbox.c.failures,
    outbox.c.reason,
    outbox.c.created_at,
    outbox.c.available_at,
    outbox.c.decided_at,
    outbox.c.delivered_at,
    outbox.c.presumed,
    outbox.c.lane,
    outbox.c.open_lane,
    outbox.c.parked,
)


#: MariaDB and MySQL have no index by state and id: fewer rows than these are sorted for each page.
_FEW: Final = 10_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows; all of the given conditions hold."""

    state: State | None = None
    topic: str | None = None
    key: str | None = None
    ids: Sequence[int] = ()
    lane: str | None = None
    #: Part of the reason.
    reason: str | None = None
    #: Seconds since the row was added, at least.
    older_than: float | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """As SQL."""
        found: list[sa.ColumnElement[bool]] = [outbox.c.id.in_(list(self.ids))] if self.ids else []
        wanted = {name: getattr(self, name) for name in ("state", "topic", "key", "lane")}
        found += [outbox.c[name] == value for name, value in wanted.items() if value is not None]
        if self.reason is not None:
            found.append(outbox.c.reason.contains(self.reason, autoescape=True))
        if self.older_than is not None:
            found.append(outbox.c.created_at <= utc_after(-self.older_than))
        return found


class Operations:
    """The statements behind ``outbox status``, ``list``, ``show``, ``requeue`` and ``cancel``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes = Lanes(database.dialect)
        self._cancel = _cancel(database.dialect)
        self._requeue = _requeue(database.dialect)
        self._release = _release(database.dialect)

    def figures(self, *, exact: bool = False) -> Figures:
        """Rows per state, the age of the oldest due row, and who listens; ``exact`` counts every row."""
        return Gauges(self._database).figures(exact=exact)

    def holders(self, limit: int) -> list[dict[str, Any]]:
        """Up to ``limit`` dead rows that hold their lanes until an operator decides, without payloads."""
        held = sa.select(*_LISTED).where(set_aside(), outbox.c.open_lane.is_not(None)).order_by(outbox.c.id)
        with self._database.look() as connection:
            return [dict(row) for row in connection.execute(held.limit(limit)).mappings()]

    def listed(self, which: Filter, limit: int, after_id: int = 0) -> list[dict[str, Any]]:
        """Up to ``limit`` rows in the order of their ids, from ``after_id`` on (exclusive), without payloads."""
        by_state = which.state is not None and which.key is None and self._goes_by_state(which.state)
        query = _of_state(which, after_id, self._database.dialect) if by_state else _by_id(which, after_id)
        if which.key is not None and which.topic is None:  # topics lead to keys, and nothing else does
            query = query.where(outbox.c.topic.in_(named_topics(self._database)))
        with self._database.transaction(index_order=by_state) as connection:
            return [dict(row) for row in connection.execute(query.limit(limit)).mappings()]

    def _goes_by_state(self, state: State) -> bool:
        """Whether the index by state is the way to its rows, rather than a walk through all ids."""
        if self._database.dialect not in MYSQL_FAMILY:
            return state in sources_of(Move.REQUEUE)
        some = sa.select(outbox.c.id).where(state_in((state,))).limit(_FEW).subquery()
        with self._database.look() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one() < _FEW

    def shown(self, row_id: int) -> dict[str, Any] | None:
        """One row with all its columns; None: there is no such row."""
        with self._database.transaction() as connection:
            row = connection.execute(sa.select(outbox).where(outbox.c.id == row_id)).mappings().one_or_none()
            return None if row is None else dict(row)

    def cancel(self, row_ids: Iterable[int], reason: str) -> list[int]:
        """Makes sure that these rows are never published; the ids of those that were still pending."""
        rows = [{"id": row_id, "reason": reason[:REASON_LENGTH]} for row_id in row_ids]
        with self._database.transaction() as connection:
            return self._lanes.end(connection, self._cancel, rows)

    def release(self, row_ids: Iterable[int]) -> list[int]:
        """Lets lanes go on past dead rows that hold them; the ids of those, which stay as they are."""
        with self._database.transaction() as connection:
            return self._lanes.end(connection, self._release, [{"id": row_id} for row_id in row_ids])

    def requeue(self, row_ids: Iterable[int], *, out_of_order: bool = False) -> list[int]:
        """Puts dead or cancelled rows back to be published; the ids of those that were.

        ``out_of_order``: also rows whose lane has gone on without them. Their messages come late, whatever has been
        published meanwhile.
        """
        rows = [{"id": row_id, "out_of_order": int(out_of_order)} for row_id in row_ids]
        with self._database.transaction() as connection:
            announce(connection)
            return self._requeue.apply(connection, rows)


def _by_id(which: Filter, after_id: int) -> Any:
    return sa.select(*_LISTED).where(outbox.c.id > after_id, *which.conditions()).order_by(outbox.c.id)


def _of_state(which: Filter, after_id: int, dialect: str) -> Any:
    """By the index by state: a walk by id would pass millions of others before the first.

    On PostgreSQL the state is a range instead of one value, so that the primary key does not have the order as well.
    """
    if dialect in MYSQL_FAMILY:
        return _by_id(which, after_id).with_hint(outbox, "FORCE INDEX (ix_outbox_state)", dialect)
    state, others = which.state, replace(which, state=None)
    place = (outbox.c.state, outbox.c.id)
    behind = sa.tuple_(*place) > sa.tuple_(sa.literal(state, outbox.c.state.type), after_id)
    rows = sa.select(*_LISTED).where(set_aside(), behind, outbox.c.state <= state, *others.conditions())
    return rows.order_by(*place)


def _cancel(dialect: str) -> Ending:
    return Ending.of_move(
        dialect,
        Move.CANCEL,
        columns={"reason": AnyText},
        # Attempts that all ended without having sent anything leave no token: one that died, or got no answer, does.
        compare=lambda _: sa.or_(outbox.c.mode != Mode.PLAIN, outbox.c.token.is_(None)),
        # The moment of the cancel, from which retention counts.
        values=lambda rows: {"reason": rows.reason, "available_at": utc_now(), **no_attempt()},
        wait=True,
    )


def _requeue(dialect: str) -> Change:
    return Change.of_move(
        dialect,
        Move.REQUEUE,
        columns={"out_of_order": int},
        compare=lambda rows: sa.or_(~_left_its_lane(), rows.out_of_order == 1),
        values=lambda _: {
            "open_lane": lane_key_of_row(),
            "reason": None,
            "failures": 0,
            **again_after(0.0),
            **nobody_attempts(),
            **no_half(),
        },
        wait=True,
    )


def _release(dialect: str) -> Ending:
    """Changes nothing but the place in the lane."""
    return Ending(
        dialect,
        sources_of(Move.REQUEUE),
        compare=lambda _: outbox.c.open_lane.is_not(None),
        values=lambda _: {},
        wait=True,
    )


def _left_its_lane() -> sa.ColumnElement[bool]:
    """The lane has gone on, or may have."""
    return sa.and_(outbox.c.lane.is_not(None), outbox.c.open_lane.is_(None))
