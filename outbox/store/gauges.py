"""Gauges: how many rows are in each state and how late the oldest is, without counting millions of them.

States that an index leads to are counted up to ``BOUND`` rows; what is beyond is estimated, from the statistics that
the database keeps for its own plans (PostgreSQL: ``pg_class`` and ``pg_stats``; MariaDB and MySQL: the pages of the
index itself; SQLite: the ids), and the figures say which are estimates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import Move, State, sources_of
from outbox.schema import (
    ANY_LISTENER,
    DUE_FIRST,
    claimable,
    following,
    heartbeat,
    outbox,
    set_aside,
    state_in,
    unsettled,
)
from outbox.store.change import due
from outbox.store.clock import utc_now
from outbox.store.database import Database

#: Rows of a state that are counted one by one.
BOUND: Final = 10_000


@dataclass(frozen=True, slots=True)
class Figures:
    """The state of the outbox in figures."""

    rows: Mapping[State, int]
    #: Age in seconds of the oldest row that is due and not published; 0 if there is none.
    oldest_due: float
    #: Seconds since the oldest decision that the broker has not confirmed, among the ``BOUND`` that are due first; 0 if
    #: there is none.
    oldest_unsettled: float
    #: Seconds since each listener's last heartbeat.
    heartbeats: Mapping[str, float]
    #: The states whose number is an estimate.
    estimated: frozenset[State] = field(default_factory=frozenset)
    #: Lanes that stand still until an operator decides: those that one of the newest ``BOUND`` dead rows holds.
    held_lanes: int = 0


class Gauges:
    """Reads and changes nothing."""

    def __init__(self, database: Database, bound: int = BOUND) -> None:
        self._database = database
        #: SQLite keeps no statistics; it counts what an index holds by that index alone.
        self._bound = None if database.dialect == "sqlite" else bound
        self._small = bound

    def figures(self, *, exact: bool = False) -> Figures:
        """Rows per state, the age of the oldest due row, and who listens; ``exact`` counts every row."""
        rows, estimated = self._rows(exact=exact)
        with self._database.transaction(index_order=True) as connection:
            late = max(_age(connection, _first_due(which)) for which in (claimable(), unsettled()))
            undone = _age(connection, _oldest_decision())
            held = connection.execute(_held_lanes(connection.dialect.name)).scalar_one()
            beats = sa.select(heartbeat.c.name, heartbeat.c.beat_at, utc_now()).where(heartbeat.c.name != ANY_LISTENER)
            heard = {name: (at - beat).total_seconds() for name, beat, at in connection.execute(beats)}
        return Figures(
            rows=rows,
            oldest_due=late,
            oldest_unsettled=undone,
            heartbeats=heard,
            estimated=estimated,
            held_lanes=held,
        )

    def _rows(self, *, exact: bool) -> tuple[dict[State, int], frozenset[State]]:
        with self._database.transaction() as connection:
            total = _all_rows(connection)
            if exact or total <= self._small:
                return _every_row(connection), frozenset()
        with self._database.transaction(index_order=True) as connection:
            indexed = _indexed(connection.dialect.name)
            counted = {state: _count(connection, which, self._bound) for state, which in indexed.items()}
            known = {state: number for state, number in counted.items() if not self._bound or number <= self._bound}
            guessed = {s: max(counted.get(s, 0), _planned(connection, s)) for s in State if s not in known}
        return known | _fitted(guessed, total - sum(known.values())), frozenset(guessed)


def _every_row(connection: Connection) -> dict[State, int]:
    counted = connection.execute(sa.select(outbox.c.state, sa.func.count()).group_by(outbox.c.state))
    return dict.fromkeys(State, 0) | {State(state): number for state, number in counted}


def _indexed(dialect: str) -> dict[State, list[ColumnElement[bool]]]:
    """The states that an index leads to, each as conditions that no row fulfils twice."""
    if dialect in MYSQL_FAMILY:
        return {state: [state_in((state,))] for state in State}
    (pending,), (committed,) = sources_of(Move.COMMIT), sources_of(Move.REOPEN)
    aside = {state: [sa.and_(set_aside(), outbox.c.state == state)] for state in sources_of(Move.REQUEUE)}
    return {pending: [claimable(), following()], committed: [unsettled()], **aside}


def _count(connection: Connection, conditions: Sequence[ColumnElement[bool]], bound: int | None) -> int:
    """The number of rows, or of the first so many that are too many."""
    most = None if bound is None else bound + 1
    found = [sa.select(outbox.c.id).where(which).limit(most).subquery() for which in conditions]
    return sum(connection.execute(sa.select(sa.func.count()).select_from(rows)).scalar_one() for rows in found)


def _fitted(guessed: Mapping[State, int], rest: int) -> dict[State, int]:
    """The largest is what the others leave: InnoDB never sees more than half of a table behind one key."""
    if not guessed:
        return {}
    largest = max(guessed, key=lambda state: guessed[state])
    left = rest - sum(number for state, number in guessed.items() if state is not largest)
    return {**guessed, largest: max(guessed[largest], left)}


def _all_rows(connection: Connection) -> int:
    """The rows of the table, as the database believes; SQLite: no more than its ids leave room for."""
    if connection.dialect.name == "sqlite":
        ends = [sa.select(end(outbox.c.id)).scalar_subquery() for end in (sa.func.min, sa.func.max)]
        return connection.execute(sa.select(ends[1] - ends[0] + 1)).scalar() or 0
    return _believed(connection, sa.select(outbox.c.id))


def _planned(connection: Connection, state: State) -> int:
    """The rows of one state, as the database believes."""
    if connection.dialect.name == "sqlite":
        return 0
    return _believed(connection, sa.select(outbox.c.id).where(state_in((state,))))


def _believed(connection: Connection, query: sa.Select[Any]) -> int:
    """How many rows the planner expects."""
    words = {"literal_binds": True, "render_postcompile": True}
    text = str(query.compile(dialect=connection.dialect, compile_kwargs=words))
    if connection.dialect.name == "postgresql":
        ((plan,),) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}")
        return int(plan[0]["Plan"]["Plan Rows"])
    (row,) = connection.exec_driver_sql(f"EXPLAIN FORMAT=TRADITIONAL {text}").mappings()
    return int(row["rows"] or 0)


def _first_due(which: ColumnElement[bool]) -> sa.Select[Any, Any]:
    """Since when the first of these rows could have been worked on: one step in its index."""
    return sa.select(outbox.c.available_at, utc_now()).where(which, due()).order_by(*DUE_FIRST).limit(1)


def _oldest_decision() -> sa.Select[Any, Any]:
    next_ones = sa.select(outbox.c.decided_at).where(unsettled()).order_by(*DUE_FIRST).limit(BOUND).subquery()
    return sa.select(sa.func.min(next_ones.c.decided_at), utc_now())


def _held_lanes(dialect: str) -> sa.Select[int]:
    """Read from the end of the index that has the dead rows: one that keeps millions of them is not read through."""
    newest = DUE_FIRST if dialect in MYSQL_FAMILY else (outbox.c.id,)
    dead = sa.select(outbox.c.open_lane).where(set_aside(), state_in((State.DEAD,)), ~outbox.c.parked)
    rows = dead.order_by(*(column.desc() for column in newest)).limit(BOUND).subquery()
    return sa.select(sa.func.count(rows.c.open_lane.distinct()))


def _age(connection: Connection, query: sa.Select[Any, Any]) -> float:
    """Seconds between the two moments that the query finds; 0 if it finds none."""
    since, now = connection.execute(query).one_or_none() or (None, None)
    return (now - since).total_seconds() if since else 0.0
