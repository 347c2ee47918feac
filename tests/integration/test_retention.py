"""Retention on real servers: what is deleted, what is kept, by whom, and beside whom."""

import threading

import pytest
import sqlalchemy as sa

from outbox.lifecycle import State, endings, expiring
from outbox.schema import outbox
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.database import Database
from outbox.store.exclusive import exclusive
from outbox.store.operations import Operations
from outbox.store.retention import Periods, Retention
from tests.integration.producers import service
from tests.integration.rows import added, force

DAY = 86400.0
#: Seconds for threads; generous, the machine may be busy.
DEADLINE = 120.0
WEEK = Periods(7 * DAY)


@pytest.fixture
def retention(database: Database) -> Retention:
    return Retention(database)


def ids_of(database: Database) -> list[int]:
    with database.transaction() as connection:
        return list(connection.execute(sa.select(outbox.c.id).order_by(outbox.c.id)).scalars())


def ended(database: Database, state: State, seconds: float) -> int:
    """A row that came into this state so many seconds ago."""
    (row_id,) = added(database)
    at = utc_after(-seconds)
    delivered_at = at if state is State.DELIVERED else None
    force(database, row_id, state=state, created_at=at, available_at=at, delivered_at=delivered_at)
    return row_id


def test_old_endings_are_deleted_in_batches_and_dead_and_open_rows_are_kept(
    database: Database, retention: Retention
) -> None:
    # Given a row in each state that was put there eight days ago, and a young one in each
    old = {state: ended(database, state, 8 * DAY) for state in State}
    young = [ended(database, state, 6 * DAY) for state in State]
    # When rows older than seven days are purged, one at a time
    batches = list(retention.run(WEEK, 1))
    # Then exactly the old delivered and cancelled ones are gone
    assert batches == [1] * len(expiring())
    kept = [row_id for state, row_id in old.items() if state not in expiring()]
    assert ids_of(database) == sorted([*kept, *young])
    assert list(retention.run(WEEK, 1)) == []


def test_dead_rows_have_a_period_of_their_own(database: Database, retention: Retention) -> None:
    # Given dead and delivered rows of two ages, and a dead row that still holds its lane
    old_dead, old_delivered = (ended(database, state, 40 * DAY) for state in (State.DEAD, State.DELIVERED))
    young_dead, young_delivered = (ended(database, state, 20 * DAY) for state in (State.DEAD, State.DELIVERED))
    holder = ended(database, State.DEAD, 40 * DAY)
    force(database, holder, lane="order-1", open_lane="payments/order-1")
    # When dead rows are kept longer than delivered ones
    assert sum(retention.run(Periods(7 * DAY, 30 * DAY), 10)) == 3
    assert ids_of(database) == [young_dead, holder]
    # Or shorter
    assert list(retention.run(Periods(60 * DAY, 10 * DAY), 10)) == [1]
    # Then each goes after its own time, and followers are not let past a dead head
    assert ids_of(database) == [holder]
    assert {old_dead, old_delivered, young_delivered}.isdisjoint(ids_of(database))


def test_retention_counts_from_the_cancel(database: Database, retention: Retention) -> None:
    # Given a row that waited for a long time / When it is cancelled
    (row_id,) = added(database)
    force(database, row_id, created_at=utc_after(-30 * DAY), available_at=utc_after(-30 * DAY))
    Operations(database).cancel([row_id], "stale")
    # Then its halves are still answered for the whole retention
    assert list(retention.run(WEEK, 10)) == []
    assert ids_of(database) == [row_id]


def test_a_row_that_somebody_holds_is_left_to_the_next_run(database: Database, retention: Retention) -> None:
    if database.dialect == "sqlite":
        assert database.engine.dialect.name == "sqlite"  # one writer at a time: nothing to skip
        return
    ids = [ended(database, State.DELIVERED, 8 * DAY) for _ in range(4)]
    with database.engine.connect() as other:
        other.execute(sa.select(outbox.c.id).where(outbox.c.id == ids[0]).with_for_update())
        assert sum(retention.run(WEEK, 2)) == 3
    assert ids_of(database) == ids[:1]
    assert sum(retention.run(WEEK, 2)) == 1


def test_one_runner_at_a_time(database: Database, retention: Retention) -> None:
    # Given a runner in the middle of its batch, which is what holding the lock means
    if database.dialect == "sqlite":
        assert database.engine.dialect.name == "sqlite"  # a transaction is the lock
        return
    ids = [ended(database, State.DELIVERED, 8 * DAY) for _ in range(2)]
    with database.transaction() as other, exclusive(other, "retention") as alone:
        assert alone
        # When another one comes; Then it does nothing, and waits for nobody
        assert list(retention.run(WEEK, 10)) == []
    assert ids_of(database) == ids
    # And once the first has ended, or died, the lock is free
    other_one = database.engine.connect()
    with exclusive(other_one, "retention"):
        other_one.invalidate()
        assert list(retention.run(WEEK, 1)) == [1, 1]


def test_a_purged_key_is_free_again(database: Database, retention: Retention) -> None:
    with database.transaction() as connection:
        first = service.add(connection, topic="payments", key="k", payload=b"x")
    force(database, first, state=State.DELIVERED, created_at=utc_after(-8 * DAY), delivered_at=utc_after(-8 * DAY))
    assert list(retention.run(WEEK, 10)) == [1]
    with database.transaction() as connection:
        assert service.add(connection, topic="payments", key="k", payload=b"y") > first


def test_purging_under_load_disturbs_no_claim(database: Database, retention: Retention) -> None:
    # Given old rows of each ending, and as many pending ones between them
    pending = []
    for _ in range(30):
        pending += added(database)
        force(database, pending[-1], created_at=utc_after(-8 * DAY))
        for state in endings():
            ended(database, state, 8 * DAY)
    claimed: list[int] = []
    claims, stop = Claims(database), threading.Event()

    def claim() -> None:
        while not stop.is_set() and len(claimed) < len(pending):
            claimed.extend(attempt.row_id for attempt in claims.claim(3, 1 << 20, lease=600))

    # When a relay claims while two runners purge
    relay = threading.Thread(target=claim)
    relay.start()
    deleted: list[int] = []
    runners = [threading.Thread(target=lambda: deleted.extend(retention.run(WEEK, 7))) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(DEADLINE)
    relay.join(DEADLINE)
    stop.set()
    # Then every row is claimed once, in its order, and whatever one runner left the next run deletes
    assert claimed == pending
    sum(retention.run(WEEK, 500))
    kept = [state for state in endings() if state not in expiring()]
    assert len(ids_of(database)) == len(pending) * (1 + len(kept))


def test_a_revived_row_is_not_deleted(
    database: Database, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a cancelled row that is old enough, which an operator requeues after the purge has found it
    row_id = ended(database, State.CANCELLED, 8 * DAY)
    delete = Retention._delete

    def revived(self: Retention, connection: sa.Connection, found: list[int], periods: Periods) -> int:
        connection.execute(outbox.update().where(outbox.c.id == row_id).values(state=State.PENDING))
        return delete(self, connection, found, periods)

    monkeypatch.setattr(Retention, "_delete", revived)
    # When the purge goes on; Then it looks again, and leaves the row
    assert list(retention.run(WEEK, 10)) == []
    assert ids_of(database) == [row_id]


def test_rows_that_are_kept_are_not_read_again_by_each_run(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given more dead rows than one look takes in, which nobody deletes, and a delivered one behind them
    monkeypatch.setattr("outbox.store.retention.WINDOW", 2)
    now = [0.0]
    retention = Retention(database, tour=100.0, now=lambda: now[0])
    kept, gone = [ended(database, State.DEAD, 8 * DAY) for _ in range(5)], ended(database, State.DELIVERED, 8 * DAY)
    assert list(retention.run(WEEK, 10)) == [1]
    assert gone not in ids_of(database)
    # When one of them is published after all, and another row is added and old; Then the next run finds the latter
    force(database, kept[1], state=State.DELIVERED, delivered_at=utc_after(-8 * DAY))
    ended(database, State.CANCELLED, 8 * DAY)
    assert list(retention.run(WEEK, 10)) == [1]
    assert ids_of(database) == kept
    # And the former goes when the walk begins anew
    now[0] = 100.0
    assert list(retention.run(WEEK, 10)) == [1]
    assert ids_of(database) == [row_id for row_id in kept if row_id != kept[1]]
