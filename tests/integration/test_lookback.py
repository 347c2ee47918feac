"""Looks at due rows that begin where the last one ended, because those from the beginning take long."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.schema import outbox
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.database import Database
from outbox.store.lookback import LONG, MARGIN, Lookback
from tests.integration.rows import added

AT = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """Each reading is so many seconds after the one before."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def due_since(database: Database, row_ids: list[int], seconds: float) -> None:
    """As if they had been added so long ago."""
    at = utc_after(-seconds)
    with database.transaction() as connection:
        connection.execute(outbox.update().where(outbox.c.id.in_(row_ids)).values(available_at=at, created_at=at))


def claimed(claims: Claims, limit: int = 10) -> list[int]:
    return [it.row_id for it in claims.claim(limit, 1 << 24, lease=600)]


def test_a_row_that_was_committed_late_is_found_a_little_later(database: Database) -> None:
    # Given claims that take long, and have taken all that was due
    claims = Claims(database, Lookback(Clock(1.0)))
    assert claimed(claims) == []
    assert claimed(claims) == []
    # When a row comes, and one whose transaction began an hour ago
    late, fresh = added(database, 2)
    due_since(database, [late], 3600)
    # Then the next claim, which begins where the last one ended, takes the one, and one soon after takes the other
    assert claimed(claims) == [fresh]
    rounds = iter(lambda: claimed(claims), [late])
    assert len(list(zip(rounds, range(20), strict=False))) < 20


def test_a_backlog_is_claimed_oldest_first(database: Database) -> None:
    # Given a backlog of an hour, and claims that take long
    rows = added(database, 9)
    for place, row_id in enumerate(rows):
        due_since(database, [row_id], 3600 - 60 * place)
    claims = Claims(database, Lookback(Clock(1.0)))
    # When it is claimed a few rows at a time; Then nothing is left out, and the order is that of their age
    assert [claimed(claims, 2) for _ in range(6)] == [rows[:2], rows[2:4], rows[4:6], rows[6:8], rows[8:], []]


def test_looks_from_the_beginning_that_take_no_time_are_all_there_is() -> None:
    lookback = Lookback(Clock(LONG / 3))
    for _ in range(5):
        with lookback.look() as look:
            assert look.seconds > timedelta(days=10_000).total_seconds()
        assert not lookback.matters


def test_a_look_begins_where_the_last_one_ended() -> None:
    clock = Clock(0.0)
    lookback = Lookback(clock)
    # Given a look from the beginning that took two seconds, and ended at a row that had been due for 100
    with lookback.look() as look:
        clock.now += 2
        look.ended_at(AT, AT + timedelta(seconds=100))
    # When the next ones follow, one a second; Then each begins there, but for a margin, as far as its clock has come
    clock.now += 1
    with lookback.look() as look:
        assert look.seconds == 100 + 2 + 1 + MARGIN
    with lookback.look() as look:
        assert look.seconds == MARGIN
    # And one that fails has come no further
    clock.now += 1
    with pytest.raises(ZeroDivisionError), lookback.look():
        raise ZeroDivisionError
    with lookback.look() as look:
        assert look.seconds == 1 + MARGIN
    # And after a while one goes from the beginning; where that takes no time any more, all do
    clock.now += 5
    with lookback.look() as look:
        assert look.seconds > timedelta(days=10_000).total_seconds()
    assert not lookback.matters


def test_a_look_that_does_not_know_where_it_ended_is_followed_by_one_from_the_beginning() -> None:
    clock = Clock(0.0)
    lookback = Lookback(clock)
    with lookback.look() as look:
        clock.now += 2
        look.ended = math.inf
    assert lookback.matters
    with lookback.look() as look:
        assert look.seconds > timedelta(days=10_000).total_seconds()


def failing(lookback: Lookback, clock: Clock, after: float) -> None:
    """A look that fails so many seconds after it began."""

    def ask() -> None:
        clock.now += after
        raise ConnectionError

    with pytest.raises(ConnectionError), lookback.look():
        ask()


def test_a_look_that_fails_at_once_is_no_reason_to_look_less_far_back() -> None:
    clock = Clock(0.0)
    lookback = Lookback(clock)
    # Given a database that refuses whatever it is asked; When it is back
    failing(lookback, clock, LONG / 2)
    # Then the next look goes from the beginning
    with lookback.look() as look:
        assert look.seconds > timedelta(days=10_000).total_seconds()


def test_a_relay_that_never_gets_through_to_the_end_looks_at_what_comes() -> None:
    clock = Clock(0.0)
    lookback = Lookback(clock)
    # Given a relay that was just started, and a time-out that ends its look from the beginning
    failing(lookback, clock, 10)
    # When it looks again; Then it does so from where that one began, and takes what came since
    clock.now += 1
    with lookback.look() as look:
        assert look.seconds == 10 + 1 + MARGIN
    # When another one from the beginning fails as well; Then the looks after it go on from where they were
    clock.now += 5
    failing(lookback, clock, 10)
    with lookback.look() as look:
        assert look.seconds == 10 + 5 + MARGIN


#: When the database's clock is set, by ours.
SET_AT = 20.0


def ready(row: tuple[float, float], step: float, seen: float) -> float:
    """Since when the row could be had, for somebody who sees it now: due by the clock as it was or as it is."""
    due, committed = row
    if seen > SET_AT and due > min(SET_AT, SET_AT + step):
        due = max(SET_AT, due - step)
    return max(due, committed)


@settings(max_examples=200)
@given(
    rows=st.lists(st.tuples(st.floats(-7200, 40), st.floats(0, 40)), min_size=1, max_size=12),
    takes=st.floats(0, 6),
    step=st.floats(-10, 3600),
)
def test_no_row_waits_for_more_than_two_looks_from_the_beginning(
    rows: list[tuple[float, float]], takes: float, step: float
) -> None:
    # Given rows that became due at one moment and were committed at another, and a database whose clock is set
    clock = Clock(0.0)
    lookback = Lookback(clock)
    waiting, waited = rows, list[float]()
    # When looks follow each other, half a second between them
    while clock.now < 80:
        with lookback.look() as look:
            began, now = clock.now, clock.now + (step if clock.now > SET_AT else 0)
            found = [(due, at) for due, at in waiting if now - look.seconds <= due <= now and at <= began]
            clock.now += takes if look.seconds > 1e9 else 0.01
            if found:
                look.ended_at(AT + timedelta(seconds=max(found)[0]), AT + timedelta(seconds=now))
        waiting = [it for it in waiting if it not in found]
        waited += [began - ready(it, step, began) for it in found]
        clock.now += 0.5
    # Then none is left, and none has waited for longer than a look takes that came too early, and the rest after it
    assert waiting == []
    assert max(waited) <= takes + 5.0 + 2 * 0.51
