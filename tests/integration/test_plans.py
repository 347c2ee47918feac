"""How the daemons' statements are planned on a large table: by an index, up to a limit, whatever the statistics say.

Times are for ``benchmarks/claim.py``; what makes them is asserted here.
"""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Refusal, Return, Winner
from outbox.store.retention import Periods, Retention
from tests.integration.plans import analyze, planned
from tests.integration.rows import half_of

ROWS = 20_000
LIMIT = 10
FOLLOWERS = 240
#: Numbers of which each pair makes a row.
_SIDE = 150


def fill(database: Database, name: str, count: int, seconds: float, **columns: Any) -> None:
    """So many pending rows that came seconds ago, and whatever else is said of them; written by one statement."""
    numbers = sa.select(sa.literal(0).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < _SIDE - 1))
    tens, ones = numbers.alias("tens"), numbers.alias("ones")
    number = tens.c.n * _SIDE + ones.c.n
    same = {"topic": "t", "payload": b"x" * 200, "content_type": "text/plain", "headers": {}, "mode": "transactional"}
    at = utc_after(-seconds)
    values = {**same, "state": State.PENDING, "created_at": at, "available_at": at, **columns}
    bound = {column: _expression(column, value) for column, value in values.items()}
    key = sa.literal(f"{name}-").concat(sa.cast(number, sa.String(20)))
    rows = sa.select(key, *bound.values()).select_from(tens.join(ones, sa.true())).where(number < count)
    with database.transaction() as connection:
        connection.execute(outbox.insert().from_select(["key", *bound], rows))


def _expression(column: str, value: Any) -> Any:
    return value if isinstance(value, sa.ColumnElement) else sa.literal(value, outbox.c[column].type)


def free(database: Database) -> None:
    """No lanes."""
    fill(database, "free", ROWS, 60)


def every_lane_blocked(database: Database) -> None:
    """Followers of a decided head in front, parked, and some rows without a lane behind them."""
    lane = {"lane": "a", "open_lane": "t/a"}
    fill(database, "head", 1, 90, state=State.COMMITTED, **lane)
    fill(database, "follower", ROWS, 80, parked=True, **lane)
    fill(database, "free", LIMIT, 60)


def one_lane_met(database: Database) -> None:
    """A blocked lane whose followers no claim has met yet, in front of rows without a lane."""
    lane = {"lane": "a", "open_lane": "t/a"}
    fill(database, "head", 1, 90, state=State.COMMITTED, **lane)
    fill(database, "follower", FOLLOWERS, 80, **lane)
    fill(database, "free", ROWS, 60)


def none(_: Database) -> None:
    """The statistics of an outbox in which all is delivered: so a relay finds them after a burst."""


@pytest.fixture(params=[analyze, none], ids=["analyzed", "stale"])
def statistics(request: pytest.FixtureRequest, database: Database) -> Callable[[], None]:
    """Makes the statistics that the case is about, when the rows are there."""
    fill(database, "delivered", 500, 840_000, state=State.DELIVERED, delivered_at=utc_after(-60))
    analyze(database)
    if database.dialect == "postgresql":
        with database.transaction() as connection:
            connection.execute(sa.text("ALTER TABLE outbox SET (autovacuum_enabled = off)"))
    refresh: Callable[[Database], None] = request.param
    return lambda: refresh(database)


@pytest.mark.parametrize("backlog", [free, every_lane_blocked, one_lane_met], ids=lambda it: it.__name__)
def test_a_claim_walks_the_claim_index_up_to_its_limit(
    database: Database, statistics: Callable[[], None], backlog: Callable[[Database], None]
) -> None:
    # Given a backlog
    backlog(database)
    statistics()
    # When rows are claimed
    with planned(database) as plans:
        claimed = Claims(database).claim(LIMIT, 1 << 20, lease=60)
    # Then each statement goes by an index, and no backlog is sorted to find its first rows
    assert len(claimed) == LIMIT
    assert plans.whole_table() == []
    assert plans.sorts == []
    assert plans.indexes() >= ({"ix_outbox_state"} if database.dialect in MYSQL_FAMILY else {"ix_outbox_claim"})


def test_what_follows_a_claim_goes_by_the_ids_of_its_rows(database: Database, statistics: Callable[[], None]) -> None:
    # Given rows under way before a backlog
    free(database)
    statistics()
    claims, leases = Claims(database), CommitLeases(database)
    attempts = claims.claim(LIMIT, 1 << 20, lease=60)
    halves = {attempt.row_id: half_of("t") for attempt in attempts}
    # When they are renewed, decided, taken over and settled
    with planned(database) as plans:
        claims.renew(attempts, 60)
        winners = [Winner(attempt, halves[attempt.row_id]) for attempt in attempts[:5]]
        refused = [Refusal(attempt, "no", 5.0 if number % 2 else None) for number, attempt in enumerate(attempts[5:7])]
        returned = [Return(attempt, 5.0) for attempt in attempts[7:]]
        Decisions(database).decide(Outcomes(winners, (), refused, returned), 0.0)
        held = leases.take_over_due(LIMIT, 60)
        leases.settle([(holding.row_id, holding.half.half_id) for holding in held])
    # Then no statement reads the table, or locks a row that it does not name
    assert len(held) == 5
    assert plans.whole_table() == []
    assert plans.sorts == []


@pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)
def test_a_large_batch_is_not_compared_with_each_row_of_a_table_without_statistics(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lane of many small rows, in a table that was never analyzed: the planner expects one or two that are due
    with database.transaction() as connection:
        connection.execute(sa.text("ALTER TABLE outbox SET (autovacuum_enabled = off)"))
    for part in range(3):
        fill(database, f"part-{part}", ROWS, 80 - part, payload=b"x", lane="a", open_lane="t/a")
    # When its followers are parked, a thousand at once
    monkeypatch.setattr("outbox.store.claims._ROUNDS", 2)
    with planned(database) as plans:
        claimed = [len(Claims(database).claim(256, 1 << 20, lease=60)) for _ in range(2)]
    # Then a statement may read the table once, and no more
    assert claimed == [1, 0]
    assert plans.products == []


def test_a_purge_walks_the_ids_up_to_the_first_young_row(database: Database, statistics: Callable[[], None]) -> None:
    # Given old rows, and many young ones behind them (and before them those of the statistics)
    old = utc_after(-900_000.0)
    fill(database, "old", 100, 900_000, state=State.DELIVERED, delivered_at=old)
    fill(database, "young", ROWS, 60, state=State.DELIVERED, delivered_at=utc_after(-60))
    statistics()
    # When they are purged
    with planned(database) as plans:
        batches = list(Retention(database).run(Periods(800_000.0, 850_000.0), 40))
    # Then each statement goes by the primary key
    assert batches == [40, 40, 20]
    assert plans.whole_table() == []
    assert plans.sorts == []
    assert plans.indexes() <= {"outbox_pkey", "PRIMARY"}


def test_followers_that_fill_a_page_are_parked_together(database: Database) -> None:
    # Given a blocked lane whose followers no claim has met, in front of rows without a lane
    one_lane_met(database)
    # When one page is claimed
    claimed = Claims(database).claim(LIMIT, 1 << 20, lease=60)
    # Then all of them are out of the way (sixteen pages hold but two thirds), and each was tried as often as before
    with database.transaction() as connection:
        parked = sa.select(sa.func.count(), sa.func.max(outbox.c.attempts)).where(outbox.c.parked)
        assert connection.execute(parked).one() == (FOLLOWERS, 0)
    assert {attempt.lane for attempt in claimed} == {None}
    assert len(claimed) == LIMIT
