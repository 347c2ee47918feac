"""The answers to checks: a real store, checks and look-ups as the test says."""

import pytest
from sqlalchemy.exc import OperationalError

from checkback.checker import Checker
from outbox.brokers.base import ORIGIN, ROW_ID, TOKEN, Check, Ended, Half
from outbox.commits import Commits
from outbox.envelope import Envelopes
from outbox.lifecycle import State, Verdict
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Winner
from outbox.verdict import Confirmation, RowView, Sighting
from tests.integration.rows import LONG_LEASE, added, column, force, half_of, state_of
from tests.integration.scripted import ScriptedBroker

ORIGIN_HERE = "tests/db"


class CheckBack:
    """A checker, and the answers that it gave."""

    def __init__(self, database: Database) -> None:
        self.broker = ScriptedBroker()
        self.leases = CommitLeases(database)
        self.confirmation = Confirmation.CONFIRMED
        self.said: list[Verdict] = []
        self.checker = Checker(
            self.leases,
            Commits(self.broker, self.leases, 72 * 3600),
            Envelopes(ORIGIN_HERE),
            commit_window=5,
            commit_lease=LONG_LEASE,
            now=lambda: 0.0,
        )

    def ask(self, row_id: int | str, token: str, half: Half | None = None, origin: str = ORIGIN_HERE) -> Verdict:
        """The broker asks; the last thing that it is told."""
        properties = {ORIGIN: origin, ROW_ID: str(row_id), TOKEN: token}
        self.checker.on_check(Check(half or half_of(), properties, 1), self._answer)
        return self.said[-1]

    def _answer(self, verdict: Verdict, _until: float) -> Ended:
        self.said.append(verdict)
        return Ended(self.confirmation)


@pytest.fixture
def checks(database: Database) -> CheckBack:
    return CheckBack(database)


def claimed(database: Database) -> tuple[int, str]:
    """A row under a live lease, and its token."""
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1 << 20, LONG_LEASE)
    return row_id, attempt.token


def committed(database: Database) -> tuple[int, str, Half]:
    """A row that chose its half, under a live commit lease."""
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1 << 20, LONG_LEASE)
    half = half_of()
    Decisions(database).decide(Outcomes(winners=[Winner(attempt, half)]), LONG_LEASE)
    return row_id, attempt.token, half


def lease_over(database: Database, row_id: int) -> None:
    force(database, row_id, available_at=utc_after(-1))


@pytest.mark.parametrize(
    ("row", "token", "origin"),
    [
        ("1", "t", "another/db"),
        ("999999", "t", ORIGIN_HERE),
        ("not a number", "t", ORIGIN_HERE),
        ("", "t", ORIGIN_HERE),
    ],
)
def test_a_foreign_unknown_or_unreadable_half_is_never_rolled_back(
    checks: CheckBack, row: str, token: str, origin: str
) -> None:
    assert checks.ask(row, token, origin=origin) is Verdict.UNKNOWN


def test_a_live_attempt_is_left_alone_and_a_superseded_one_rolled_back(database: Database, checks: CheckBack) -> None:
    row_id, token = claimed(database)
    assert checks.ask(row_id, token) is Verdict.UNKNOWN
    assert checks.ask(row_id, "another") is Verdict.ROLLBACK
    assert state_of(database, row_id) is State.PENDING


def test_a_row_without_a_token_has_every_half_rolled_back(database: Database, checks: CheckBack) -> None:
    (row_id,) = added(database)
    assert checks.ask(row_id, "any") is Verdict.ROLLBACK


def test_an_attempt_that_ran_out_is_adopted_and_committed(database: Database, checks: CheckBack) -> None:
    row_id, token = claimed(database)
    lease_over(database, row_id)
    half = half_of()
    assert checks.ask(row_id, token, half) is Verdict.COMMIT
    assert state_of(database, row_id) is State.DELIVERED
    assert column(database, row_id, "half_id") == half.half_id


def test_an_adopted_half_without_an_answer_stays_committed(database: Database, checks: CheckBack) -> None:
    row_id, token = claimed(database)
    lease_over(database, row_id)
    checks.confirmation = Confirmation.UNANSWERED
    assert checks.ask(row_id, token) is Verdict.COMMIT
    assert state_of(database, row_id) is State.COMMITTED


def test_a_committed_row_speaks_only_for_its_own_half(database: Database, checks: CheckBack) -> None:
    row_id, token, half = committed(database)
    assert checks.ask(row_id, token, half) is Verdict.UNKNOWN
    assert checks.ask(row_id, token, half_of()) is Verdict.ROLLBACK
    assert checks.ask(row_id, "another", half) is Verdict.ROLLBACK
    assert state_of(database, row_id) is State.COMMITTED


@pytest.mark.parametrize(
    ("sighting", "answer", "state"),
    [
        (Sighting.ABSENT, Verdict.COMMIT, State.DELIVERED),
        (Sighting.VISIBLE, Verdict.ROLLBACK, State.DELIVERED),
        (Sighting.CANNOT_TELL, Verdict.UNKNOWN, State.COMMITTED),
    ],
)
def test_a_commit_is_repeated_only_after_a_look_up(
    database: Database, checks: CheckBack, sighting: Sighting, answer: Verdict, state: State
) -> None:
    # Given a decision whose holder is gone
    row_id, token, half = committed(database)
    lease_over(database, row_id)
    checks.broker.sighting = sighting
    # When the broker asks
    assert checks.ask(row_id, token, half) is answer
    # Then
    assert state_of(database, row_id) is state


def test_a_half_that_the_broker_lost_is_left_to_the_reconciler(database: Database, checks: CheckBack) -> None:
    row_id, token, half = committed(database)
    lease_over(database, row_id)
    checks.confirmation = Confirmation.GONE
    checks.ask(row_id, token, half)
    assert state_of(database, row_id) is State.COMMITTED


@pytest.mark.parametrize("state", [State.DELIVERED, State.CANCELLED, State.DEAD])
def test_an_ended_row_has_every_half_rolled_back(database: Database, checks: CheckBack, state: State) -> None:
    row_id, token, half = committed(database)
    force(database, row_id, state=state)
    assert checks.ask(row_id, token, half) is Verdict.ROLLBACK


def test_a_database_that_is_away_means_unknown(
    database: Database, checks: CheckBack, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(CommitLeases):
        def read(self, row_id: int) -> RowView | None:
            raise OperationalError("SELECT", {}, ConnectionError("refused"))

    checks.checker = Checker(
        Away(database),
        Commits(checks.broker, checks.leases, 1),
        Envelopes(ORIGIN_HERE),
        commit_window=5,
        commit_lease=LONG_LEASE,
        now=lambda: 0.0,
    )
    assert checks.ask(1, "t") is Verdict.UNKNOWN
    assert "check unanswered" in caplog.text


def test_losing_a_race_for_the_row_reads_it_again(database: Database, checks: CheckBack) -> None:
    # Given an attempt that ran out, and a relay that claims the row between our reading and our adoption
    row_id, token = claimed(database)
    lease_over(database, row_id)

    class Raced(CommitLeases):
        def adopt(self, *_: object) -> None:
            Claims(database).claim(1, 1 << 20, LONG_LEASE)

    checks.checker = Checker(
        Raced(database),
        Commits(checks.broker, checks.leases, 1),
        Envelopes(ORIGIN_HERE),
        commit_window=5,
        commit_lease=LONG_LEASE,
        now=lambda: 0.0,
    )
    # When the broker asks about the old half, then it is superseded
    assert checks.ask(row_id, token) is Verdict.ROLLBACK
