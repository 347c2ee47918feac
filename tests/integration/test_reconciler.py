"""The reconciler: a real store, a broker that answers as the test says."""

from datetime import UTC, datetime, timedelta

import pytest

from outbox.brokers.base import Ended
from outbox.commits import Commits
from outbox.lifecycle import State, Verdict
from outbox.settings import Settings
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.verdict import Confirmation, Sighting
from relay.events import Events
from relay.reconciler import Reconciler
from tests.integration.rows import LONG_LEASE, column, force, state_of
from tests.integration.scripted import ScriptedBroker
from tests.integration.test_checkback import committed, lease_over


class Bench:
    """A reconciler and its broker."""

    def __init__(self, database: Database) -> None:
        self.broker = ScriptedBroker()
        leases = CommitLeases(database)
        settings = Settings(origin="tests", commit_grace=LONG_LEASE)
        self.reconciler = Reconciler(
            leases, Commits(self.broker, leases, settings.broker_retention), Events(), settings, lambda: 0.0
        )

    def answers(self, confirmation: Confirmation) -> None:
        self.broker.on_resolve = lambda _: Ended(confirmation, "said the broker")


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


def test_a_live_commit_lease_is_left_alone(database: Database, bench: Bench) -> None:
    row_id, _, _ = committed(database)
    assert bench.reconciler.run() == 0
    assert state_of(database, row_id) is State.COMMITTED


def test_an_absent_half_is_committed_by_its_stored_handle(database: Database, bench: Bench) -> None:
    row_id, _, half = committed(database)
    lease_over(database, row_id)
    assert bench.reconciler.run() == 1
    assert [ending.half for ending in bench.broker.endings] == [half]
    assert bench.broker.verdicts(Verdict.COMMIT) == [half.half_id]
    assert state_of(database, row_id) is State.DELIVERED


def test_a_visible_half_is_settled_without_another_commit(database: Database, bench: Bench) -> None:
    row_id, _, _ = committed(database)
    lease_over(database, row_id)
    bench.broker.sighting = Sighting.VISIBLE
    bench.reconciler.run()
    assert bench.broker.endings == []
    assert state_of(database, row_id) is State.DELIVERED


def test_a_look_up_that_cannot_tell_does_nothing(database: Database, bench: Bench) -> None:
    row_id, _, _ = committed(database)
    lease_over(database, row_id)
    bench.broker.sighting = Sighting.CANNOT_TELL
    bench.reconciler.run()
    assert bench.broker.endings == []
    assert state_of(database, row_id) is State.COMMITTED
    assert bench.reconciler.run() == 0


def test_a_half_that_is_gone_and_never_was_visible_is_published_anew(database: Database, bench: Bench) -> None:
    row_id, _, _ = committed(database)
    lease_over(database, row_id)
    bench.answers(Confirmation.GONE)
    bench.reconciler.run()
    assert state_of(database, row_id) is State.PENDING
    assert column(database, row_id, "token") is None


def test_a_half_that_is_gone_since_long_ago_is_given_up(database: Database, bench: Bench) -> None:
    row_id, _, _ = committed(database)
    lease_over(database, row_id)
    force(database, row_id, decided_at=datetime.now(UTC) - timedelta(hours=37))
    bench.answers(Confirmation.GONE)
    bench.reconciler.run()
    assert state_of(database, row_id) is State.DEAD
    assert "outcome unknown" in column(database, row_id, "reason")


def test_a_denied_commit_stays_committed_and_is_repeated_more_rarely(database: Database, bench: Bench) -> None:
    row_id, _, _ = committed(database)
    lease_over(database, row_id)
    bench.answers(Confirmation.DENIED)
    bench.reconciler.run()
    assert state_of(database, row_id) is State.COMMITTED
    assert "said the broker" in column(database, row_id, "reason")
    assert bench.reconciler.run() == 0
