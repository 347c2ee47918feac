"""The database's clock is set back: rows that were written before do not wait until it is as late once more."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

import relay.daemon
from outbox.schema import outbox
from outbox.store.claims import Claims
from outbox.store.clock_sweep import ClockSweep, Reach
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Refusal, Return, Winner
from tests.integration.rows import added, half_of
from tests.integration.running import RunningRelay

#: Long, and what is just before their end is so by minutes: the database's clock goes on while the test stands still.
LEASE, BACK_OFF, MINUTES = 600.0, 1800.0, 300.0
REACH = Reach(LEASE, BACK_OFF)
MOMENTS = ("available_at", "created_at", "decided_at", "not_before")


def set_back(database: Database, by: float = 3600.0) -> None:
    """What a clock that is set back by so many seconds makes of the rows: all that they say lies that much later."""
    step = timedelta(seconds=by)
    with database.transaction() as connection:
        for row in connection.execute(sa.select(outbox.c.id, *(outbox.c[name] for name in MOMENTS))).mappings().all():
            later = {name: row[name] + step for name in MOMENTS if row[name]}
            connection.execute(outbox.update().where(outbox.c.id == row["id"]).values(later))


def passes(database: Database, seconds: float) -> None:
    """So much time."""
    set_back(database, -seconds)


def claimed(database: Database) -> list[int]:
    return [it.row_id for it in Claims(database).claim(10, 1 << 24, LEASE)]


def decided(database: Database) -> int:
    """A row that chose its half."""
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1 << 24, LEASE)
    assert Decisions(database).decide(Outcomes(winners=[Winner(attempt, half_of())]), LEASE) == {row_id}
    return row_id


def given_back(database: Database, delay: float | None) -> int:
    """A row of which nothing was sent, for so many seconds, or in its place."""
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1 << 24, LEASE)
    Decisions(database).decide(Outcomes(returns=[Return(attempt, delay)]), LEASE)
    return row_id


def refused(database: Database, delay: float) -> int:
    """A row that the broker refused once, in back-off for so many seconds."""
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1 << 24, LEASE)
    Decisions(database).decide(Outcomes(refusals=[Refusal(attempt, "no", delay)]), LEASE)
    return row_id


def taken_over(database: Database) -> list[int]:
    return [it.row_id for it in CommitLeases(database).take_over_due(10, LEASE)]


def test_rows_that_were_added_before_are_claimed_in_their_order(database: Database) -> None:
    # Given rows, of which one has been given back in its place and one is for later, and a clock that is set back
    rows = [given_back(database, None), *added(database, 2)]
    added(database, delay=timedelta(hours=2))
    set_back(database)
    assert claimed(database) == []
    # When the sweep comes by, Then those that may be published are due, oldest first
    assert ClockSweep(database, REACH).run() == len(rows)
    assert claimed(database) == rows


def test_what_a_holder_left_waits_for_one_lease_from_now_on(database: Database) -> None:
    # Given a decision and an attempt whose holders are gone, a row that waits, and a clock that is set back
    committed, waiting = decided(database), given_back(database, BACK_OFF)
    (leased,) = added(database)
    assert claimed(database) == [leased]
    set_back(database)
    # When the sweep has come by, Then the row that waited is due, and a lease is over once its whole time has passed
    assert ClockSweep(database, REACH).run() == 3
    assert claimed(database) == [waiting]
    passes(database, LEASE - MINUTES)
    assert taken_over(database) == []
    passes(database, MINUTES)
    assert leased in claimed(database)
    assert taken_over(database) == [committed]


def test_a_refused_row_is_not_tried_before_the_longest_back_off(database: Database) -> None:
    # Given a row in a back-off that is longer than this relay's, as of one with other settings
    row_id = refused(database, 10 * BACK_OFF)
    # When the sweep comes by, again and again; Then the row waits for this relay's
    sweep = ClockSweep(database, REACH)
    assert [sweep.run(), sweep.run()] == [1, 0]
    passes(database, BACK_OFF - MINUTES)
    assert claimed(database) == []
    passes(database, MINUTES)
    assert claimed(database) == [row_id]


def test_rows_that_wait_by_the_clock_as_it_is_are_left_alone(database: Database) -> None:
    # Given rows under leases, in back-off and for later
    decided(database)
    given_back(database, BACK_OFF)
    added(database)
    claimed(database)
    added(database, delay=timedelta(days=1))
    # When the sweep comes by, Then nothing changes
    assert ClockSweep(database, REACH).run() == 0


def test_a_lane_goes_on_at_once(database: Database) -> None:
    # Given a lane whose followers are parked, and a clock that is set back
    head, follower = added(database, 2, lane="order-1")
    (attempt,) = Claims(database).claim(10, 1 << 24, LEASE)
    assert attempt.row_id == head
    set_back(database)
    # When the head ends
    half = half_of()
    Decisions(database).decide(Outcomes(winners=[Winner(attempt, half)]), LEASE)
    CommitLeases(database).settle([(head, half.half_id)])
    # Then the next row is due
    assert claimed(database) == [follower]


def test_a_relay_ships_what_would_have_waited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a backlog, and a clock that is set back
    monkeypatch.setattr(relay.daemon, "_CLOCK_SWEEP_EVERY", 0.2)
    added(database, 5, lane="order-1")
    added(database, 5)
    set_back(database)
    # When a relay runs, Then every message is visible once
    with RunningRelay(database) as running:
        running.expect_all_delivered(10)


def test_a_run_that_finds_nothing_is_one_short_transaction(database: Database) -> None:
    # Given rows that are due, held, and for later, and a clock that was not touched
    decided(database)
    added(database, 3, delay=timedelta(hours=2))
    sweep = ClockSweep(database, REACH)
    begun: list[object] = []
    sa.event.listen(database.engine, "begin", begun.append)
    # When the sweep comes by, as it does every few seconds; Then it costs an idle database one transaction
    assert sweep.run() == 0
    assert len(begun) == 1
