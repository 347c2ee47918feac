"""A transport that neither confirms nor finds: the check-back repeats a COMMIT, silence settles, a gap is unsure."""

from typing import Any

import pytest

from checkback.checker import Checker
from outbox.brokers.base import ORIGIN, ROW_ID, TOKEN, Check, Ended, Half
from outbox.commits import Commits
from outbox.envelope import Envelopes
from outbox.lifecycle import State, Verdict
from outbox.schema import ANY_LISTENER, heartbeat
from outbox.settings import Settings
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.heartbeats import Heartbeats
from outbox.store.operations import Operations
from outbox.verdict import Confirmation
from relay.events import Events
from relay.presumption import Presumption
from relay.reconciler import Reconciler
from tests.integration.rows import LONG_LEASE, column, force, state_of
from tests.integration.scripted import ScriptedBroker
from tests.integration.test_checkback import claimed, committed, lease_over

HERE = "tests/db"


class Blind:
    """Check-back and reconciler over a broker that says nothing."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self._database = database
        self.settings = Settings(origin="tests", commit_grace=LONG_LEASE, heartbeat_every=LONG_LEASE / 3, **settings)
        leases = CommitLeases(database)
        self.reconciler = Reconciler(
            leases, Presumption(leases, Heartbeats(database), self.settings), Events(), self.settings, lambda: 0.0
        )
        self.checker = Checker(
            leases,
            Commits(ScriptedBroker(finds=False), leases, self.settings.broker_retention),
            Envelopes(HERE),
            commit_window=5,
            commit_lease=LONG_LEASE,
            now=lambda: 0.0,
        )

    def ask(self, row_id: int, token: str, half: Half) -> Verdict:
        """What the broker is told about a half; no answer of its own comes back."""
        said: list[Verdict] = []

        def answer(verdict: Verdict, _until: float) -> Ended:
            said.append(verdict)
            return Ended(Confirmation.UNANSWERED)

        self.checker.on_check(Check(half, {ORIGIN: HERE, ROW_ID: str(row_id), TOKEN: token}, 1), answer)
        return said[-1]

    def undecided_since(self, row_id: int, seconds: float) -> None:
        """The row was decided, and its lease over, so long ago."""
        force(self._database, row_id, decided_at=utc_after(-seconds - 15), available_at=utc_after(-seconds))

    def watched_for(self, seconds: float, silent: float = 0.0) -> None:
        """Some listener was there for so long, and has been silent since."""
        Heartbeats(self._database).beat("listener", self.settings.heartbeat_gap)
        with self._database.transaction() as connection:
            connection.execute(heartbeat.update().values(started_at=utc_after(-seconds), beat_at=utc_after(-silent)))


@pytest.fixture
def blind(database: Database) -> Blind:
    return Blind(database)


def test_only_a_check_repeats_the_commit_of_a_decision(database: Database, blind: Blind) -> None:
    # Given a decision whose COMMIT nobody confirmed, watched by a listener
    row_id, token, half = committed(database)
    blind.watched_for(10_000)
    # When its lease is over / Then the reconciler leaves it alone, however often it comes by
    lease_over(database, row_id)
    assert blind.reconciler.run() == 0
    # And the broker's question is answered COMMIT, once per lease
    assert blind.ask(row_id, token, half) is Verdict.COMMIT
    assert blind.ask(row_id, token, half) is Verdict.UNKNOWN
    assert state_of(database, row_id) is State.COMMITTED


def test_an_attempt_that_ran_out_is_adopted_without_a_look_up(database: Database, blind: Blind) -> None:
    row_id, token = claimed(database)
    lease_over(database, row_id)
    half = Half("payments", "A" * 32, "broker-a", "1", "outbox-tests")
    assert blind.ask(row_id, token, half) is Verdict.COMMIT
    assert state_of(database, row_id) is State.COMMITTED


def test_silence_over_the_whole_horizon_is_delivery(database: Database, blind: Blind) -> None:
    # Given a decision as old as the broker's check horizon, watched all the time
    row_id, token, half = committed(database)
    blind.undecided_since(row_id, blind.settings.check_horizon + 1)
    blind.watched_for(blind.settings.check_horizon + 100)
    # When the reconciler comes by / Then the delivery is presumed, and says so
    assert blind.reconciler.run() == 1
    assert state_of(database, row_id) is State.DELIVERED
    assert column(database, row_id, "presumed")
    # And a question about it all the same is answered COMMIT, about any other half of it ROLLBACK
    assert blind.ask(row_id, token, half) is Verdict.COMMIT
    other = Half("payments", "B" * 32, "broker-a", "1", "outbox-tests")
    assert blind.ask(row_id, token, other) is Verdict.ROLLBACK


@pytest.mark.parametrize(
    ("watched", "silent"), [(100, 0.0), (10_000, 2 * LONG_LEASE)], ids=["began later", "silent now"]
)
def test_a_gap_in_the_watch_publishes_the_row_anew(
    database: Database, blind: Blind, watched: float, silent: float
) -> None:
    row_id, token, half = committed(database)
    blind.undecided_since(row_id, blind.settings.check_horizon + 1)
    blind.watched_for(watched, silent)
    blind.reconciler.run()
    assert state_of(database, row_id) is State.PENDING
    assert "republished" in column(database, row_id, "reason")
    assert blind.ask(row_id, token, half) is Verdict.ROLLBACK


def test_a_gap_is_held_where_the_settings_say_so(database: Database) -> None:
    blind = Blind(database, unsure="hold")
    row_id, _, _ = committed(database)
    blind.undecided_since(row_id, blind.settings.check_horizon + 1)
    assert blind.reconciler.run() == 1
    assert state_of(database, row_id) is State.COMMITTED
    assert column(database, row_id, "reason").startswith("unsure: ")
    assert blind.reconciler.run() == 0


def test_a_delivery_that_was_confirmed_is_not_presumed(database: Database, blind: Blind) -> None:
    row_id, token, half = committed(database)
    CommitLeases(database).settle([(row_id, half.half_id)])
    assert not column(database, row_id, "presumed")
    assert blind.ask(row_id, token, half) is Verdict.ROLLBACK


def test_the_watch_goes_on_from_one_listener_to_the_next_and_begins_anew_after_a_silence(database: Database) -> None:
    heartbeats = Heartbeats(database)
    # Given a listener that has been there for long
    assert heartbeats.watched_since(LONG_LEASE) is None
    heartbeats.beat("first", LONG_LEASE)
    with database.transaction() as connection:
        connection.execute(heartbeat.update().values(started_at=utc_after(-500)))
    began = heartbeats.watched_since(LONG_LEASE)
    # When another takes its place / Then the watch has no gap
    heartbeats.beat("second", LONG_LEASE)
    heartbeats.leave("first")
    assert heartbeats.watched_since(LONG_LEASE) == began
    # When everybody was silent for longer than the gap / Then nobody watches, and the next one begins anew
    with database.transaction() as connection:
        connection.execute(heartbeat.update().values(beat_at=utc_after(-LONG_LEASE - 1)))
    assert heartbeats.watched_since(LONG_LEASE) is None
    heartbeats.beat("second", LONG_LEASE)
    renewed = heartbeats.watched_since(LONG_LEASE)
    assert began is not None
    assert renewed is not None
    assert renewed > began


def test_the_watch_is_no_listener_of_its_own(database: Database) -> None:
    Heartbeats(database).beat("first", 30)
    assert ANY_LISTENER not in Operations(database).figures().heartbeats
