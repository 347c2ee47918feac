"""The figures of a large outbox: near the truth, and without reading all of it."""

from typing import Any

import sqlalchemy as sa

from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.examined_rows import ExaminedRows
from outbox.store.gauges import Gauges
from tests.integration.plans import analyze, planned

#: What stands for ten thousand rows here.
BOUND = 20
MANY = 2_000


def filled(database: Database, **counts: int) -> None:
    """So many rows in these states, written past the library call."""
    with database.transaction() as connection:
        for state, count in counts.items():
            rows: list[dict[str, Any]] = [{"key": f"{state}-{number}"} for number in range(count)]
            same = {"topic": "t", "payload": b"x", "content_type": "text/plain", "headers": {}, "mode": "plain"}
            now = {"state": State(state), "created_at": utc_after(-600), "available_at": utc_now()}
            connection.execute(outbox.insert().values(**same, **now), rows)
    analyze(database)


def test_a_small_outbox_is_counted(database: Database) -> None:
    filled(database, pending=3, dead=2, delivered=10)
    figures = Gauges(database, BOUND).figures()
    assert {state: number for state, number in figures.rows.items() if number} == {
        State.PENDING: 3,
        State.DEAD: 2,
        State.DELIVERED: 10,
    }
    assert figures.estimated == frozenset()


def test_few_rows_among_many_are_counted_and_the_many_are_estimated(database: Database) -> None:
    # Given many delivered rows and few others
    filled(database, delivered=MANY, pending=3, committed=4, cancelled=5, dead=6)
    # When the figures are read; Then the few are exact, and the others near the truth, and said to be an estimate
    figures = Gauges(database, BOUND).figures()
    few = {State.PENDING: 3, State.COMMITTED: 4, State.CANCELLED: 5, State.DEAD: 6}
    assert {state: figures.rows[state] for state in few} == few
    assert figures.estimated == {State.DELIVERED}
    assert MANY / 2 < figures.rows[State.DELIVERED] < MANY * 2
    # And whoever wants them exact gets them
    exact = Gauges(database, BOUND).figures(exact=True)
    assert dict(exact.rows) == {**few, State.DELIVERED: MANY}
    assert exact.estimated == frozenset()


def test_a_backlog_is_estimated(database: Database) -> None:
    # Given many pending rows, followers of a lane among them, and no delivered one
    filled(database, pending=MANY, dead=1)
    with database.transaction() as connection:
        followers = outbox.c.id <= MANY // 2
        connection.execute(outbox.update().where(followers).values(parked=True, lane="a", open_lane="t/a"))
    figures = Gauges(database, BOUND).figures()
    assert MANY / 2 <= figures.rows[State.PENDING] < MANY * 2
    assert figures.rows[State.DEAD] == 1
    assert figures.rows[State.DELIVERED] <= MANY / 2


def test_lanes_that_dead_rows_hold_are_counted(database: Database) -> None:
    # Given dead rows, of which some hold a lane, and other rows in lanes
    filled(database, dead=6, pending=4)
    with database.transaction() as connection:
        for state in (State.DEAD, State.PENDING):
            rows = connection.execute(sa.select(outbox.c.id).where(outbox.c.state == state).order_by(outbox.c.id))
            for place, row_id in enumerate(rows.scalars().all()[1:]):
                held = {"lane": f"{place // 2}", "open_lane": f"t/{place // 2}"}
                connection.execute(outbox.update().where(outbox.c.id == row_id).values(**held))
    # When the figures are read; Then each held lane counts once
    assert Gauges(database, BOUND).figures().held_lanes == 3


def test_the_figures_do_not_read_the_table(database: Database) -> None:
    # Given an outbox that is large for its bound
    filled(database, delivered=MANY, pending=200, committed=4, cancelled=5, dead=6)
    # When status and doctor read their figures; Then each statement walks an index, up to its bound
    with planned(database) as plans:
        Gauges(database, BOUND).figures()
        assert plans.sorts == []
        ExaminedRows(database).open()
    assert plans.whole_table() == []
    assert plans.indexes() >= ({"ix_outbox_state"} if database.dialect in MYSQL_FAMILY else {"ix_outbox_claim"})


def test_the_figures_of_an_empty_outbox(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(sa.delete(outbox))
    figures = Gauges(database, BOUND).figures()
    assert dict(figures.rows) == dict.fromkeys(State, 0)
    assert (figures.oldest_due, figures.oldest_unsettled, figures.estimated) == (0.0, 0.0, frozenset())
