"""One pass of the relay: a real store, a broker that answers as the test says."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from outbox.brokers.base import Ended, Outage, Prepared, Refused, Stored, Unknown
from outbox.envelope import Envelopes
from outbox.lifecycle import State, Verdict
from outbox.message import Mode
from outbox.schema import outbox
from outbox.settings import Settings
from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes
from outbox.verdict import Confirmation
from relay.breaker import Breaker
from relay.events import Events
from relay.keeper import LeaseKeeper
from relay.shipping import Pass, Stage
from tests.integration.rows import added, column, force, state_of
from tests.integration.scripted import ScriptedBroker

#: Waits that are over only where a test says so: the database's clock goes on while the machine stands still.
LONG: dict[str, Any] = {
    "lease": 3600.0,
    "backoff_first": 300.0,
    "outage_delay": 300.0,
    "outage_delay_most": 1200.0,
    "unknown_delay": 300.0,
    "partial_delay_most": 300.0,
    "commit_grace": 3600.0,
}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Relay:
    """A pass and all that it works with."""

    def __init__(self, database: Database, events: Events | None = None) -> None:
        self.clock = Clock()
        self.broker = ScriptedBroker()
        self.settings = Settings(origin="tests", failure_budget=2, **LONG)
        self.breaker = Breaker(self.settings.outage_delay, self.settings.outage_delay_most, self.clock)
        claims = Claims(database)
        self.stage = Stage(
            broker=self.broker,
            claims=claims,
            decisions=Decisions(database),
            leases=CommitLeases(database),
            envelopes=Envelopes("tests/db"),
            keeper=LeaseKeeper(claims, self.settings.lease, self.clock),
            breaker=self.breaker,
            events=events or Events(),
            settings=self.settings,
            now=self.clock,
        )

    def run(self, decisions: Decisions | None = None) -> int:
        """Claims and ships once; the number of rows."""
        stage = self.stage
        if decisions is not None:
            stage = replace(stage, decisions=decisions)
        one = Pass(stage)
        attempts, since = one.claim()
        if attempts:
            one.ship(attempts, since)
        return len(attempts)


class Told(Events):
    """Remembers what it is told of single rows."""

    def __init__(self) -> None:
        self.facts: list[str] = []

    def refused(self, attempt: Attempt, reason: str, *, buried: bool) -> None:
        self.facts.append(f"refused {reason} {'for good' if buried else 'for now'}")

    def unknown(self, attempt: Attempt, reason: str) -> None:
        self.facts.append(f"unknown {reason}")


def due_now(database: Database, row_id: int) -> None:
    force(database, row_id, available_at=utc_after(-1))


def test_a_row_becomes_a_half_a_decision_and_a_commit(database: Database) -> None:
    # Given
    (row_id,) = added(database, payload=b"\x00\xff", tag="paid", headers={"trace": "1"})
    relay = Relay(database)
    # When
    assert relay.run() == 1
    # Then
    (message,) = relay.broker.prepared
    assert (message.body, message.tag, message.key) == (b"\x00\xff", "paid", column(database, row_id, "key"))
    assert message.properties["trace"] == "1"
    assert message.properties["outbox-id"] == str(row_id)
    assert relay.broker.verdicts(Verdict.COMMIT) == [message.unique_id]
    assert state_of(database, row_id) is State.DELIVERED
    assert column(database, row_id, "half_id") == message.unique_id


def test_a_plain_row_is_sent_once_and_delivered(database: Database) -> None:
    (row_id,) = added(database)
    force(database, row_id, mode="plain")
    relay = Relay(database)
    relay.run()
    assert len(relay.broker.prepared) == 1
    assert relay.broker.endings == []
    assert state_of(database, row_id) is State.DELIVERED


def test_refusals_are_counted_and_end_in_a_dead_row_that_is_kept(database: Database) -> None:
    # Given a broker that refuses the row, and a budget of two
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.on_prepare = lambda _: Refused("no such topic")
    # When it was refused once, it waits
    relay.run()
    assert state_of(database, row_id) is State.PENDING
    assert column(database, row_id, "failures") == 1
    assert relay.run() == 0
    # When it was refused twice
    due_now(database, row_id)
    relay.run()
    # Then it is dead, with the reason
    assert state_of(database, row_id) is State.DEAD
    assert column(database, row_id, "reason") == "no such topic"


@pytest.mark.parametrize(
    ("outcome", "fact"), [(Refused("illegal"), "refused illegal for now"), (Unknown("no answer"), "unknown no answer")]
)
def test_what_became_of_a_row_is_told_only_once_the_database_holds_it(
    database: Database, outcome: Prepared, fact: str
) -> None:
    (row_id,) = added(database)
    told = Told()
    relay = Relay(database, told)
    relay.broker.on_prepare = lambda _: outcome
    # When the database is away at the decision / Then nothing is told
    relay.run(decisions=_Away(database))
    assert told.facts == []
    # When it does / Then the fact is told
    due_now(database, row_id)
    relay.run()
    assert told.facts == [fact]


def test_one_refused_row_does_not_stop_the_others(database: Database) -> None:
    ids = added(database, 3)
    relay = Relay(database)
    bad = str(ids[1])
    relay.broker.on_prepare = lambda it: (
        Refused("illegal") if it.properties["outbox-id"] == bad else Stored(relay.broker.half(it))
    )
    relay.run()
    assert [state_of(database, it) for it in ids] == [State.DELIVERED, State.PENDING, State.DELIVERED]


def test_the_trouble_of_one_topic_charges_no_row_and_stops_no_other(database: Database) -> None:
    # Given a row whose topic has no route, alone in its pass
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.on_prepare = lambda _: Outage("topic payments: no route", partial=True)
    # When it is tried; Then it waits, is not charged, and passes go on in full
    relay.run()
    assert state_of(database, row_id) is State.PENDING
    assert column(database, row_id, "failures") == 0
    assert column(database, row_id, "reason") == "topic payments: no route"
    assert relay.breaker.closed()
    # And when the route is there, the row goes out and the reason with it
    relay.broker.on_prepare = lambda message: Stored(relay.broker.half(message))
    due_now(database, row_id)
    relay.run()
    assert state_of(database, row_id) is State.DELIVERED
    assert column(database, row_id, "reason") is None


def test_an_outage_never_uses_up_attempts_and_opens_the_breaker(database: Database) -> None:
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.on_prepare = lambda _: Outage("connection refused")
    for _ in range(5):
        due_now(database, row_id)
        relay.clock.now += 10_000
        assert relay.run() == 1
    assert state_of(database, row_id) is State.PENDING
    assert column(database, row_id, "failures") == 0
    assert column(database, row_id, "token") is None
    assert not relay.breaker.closed()


def test_rows_that_met_an_outage_keep_their_place(database: Database) -> None:
    # Given rows that a pass takes to a broker that is away, while younger ones are added
    old = added(database, 3)
    relay = Relay(database)
    relay.broker.on_prepare = lambda _: Outage("connection refused")
    relay.run()
    young = added(database, 2)
    # When the broker is back
    relay.breaker.success()
    relay.broker.prepared.clear()
    relay.broker.on_prepare = lambda message: Stored(relay.broker.half(message))
    relay.run()
    # Then the old ones go first
    assert [int(it.properties["outbox-id"]) for it in relay.broker.prepared] == old + young


def test_a_row_that_a_busy_broker_did_not_take_goes_first_but_not_for_ever(database: Database) -> None:
    # Given a broker that is too busy for the oldest row, and takes the others
    first, *others = added(database, 3)
    relay = Relay(database)
    relay.broker.on_prepare = lambda it: (
        Outage("busy") if it.properties["outbox-id"] == str(first) else Stored(relay.broker.half(it))
    )
    # When a pass is over; Then the row is tried again at once, and is not charged
    assert relay.run() == 3
    assert relay.run() == 1
    assert column(database, first, "failures") == 0
    # When it was tried often; Then it waits between two tries
    force(database, first, attempts=10)
    relay.breaker.success()
    assert relay.run() == 1
    assert relay.run() == 0
    assert [state_of(database, it) for it in others] == [State.DELIVERED] * 2


def test_a_row_that_fails_where_the_broker_answers_steps_aside(database: Database) -> None:
    # Given a broker that answers pings, and takes every row but the oldest
    first, second = added(database, 2)
    relay = Relay(database)
    relay.broker.on_prepare = lambda it: (
        Outage("busy") if it.properties["outbox-id"] == str(first) else Stored(relay.broker.half(it))
    )
    relay.breaker.outage()
    relay.clock.now += 10_000
    assert relay.breaker.admit() == 0
    # When it is probed with the oldest row
    relay.run()
    assert state_of(database, first) is State.PENDING
    # Then the next probe is another one, and the way is free
    relay.clock.now += 10_000
    assert relay.breaker.admit() == 0
    relay.run()
    assert state_of(database, second) is State.DELIVERED
    assert relay.breaker.closed()


def test_an_open_breaker_probes_with_one_row(database: Database) -> None:
    added(database, 3)
    relay = Relay(database)
    relay.breaker.outage()
    assert relay.run() == 1
    assert relay.breaker.closed()
    assert relay.run() == 2


def test_an_unknown_half_keeps_its_token_so_that_the_check_back_may_adopt_it(database: Database) -> None:
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.on_prepare = lambda _: Unknown("no answer")
    relay.run()
    assert state_of(database, row_id) is State.PENDING
    assert column(database, row_id, "token") == relay.broker.prepared[0].properties["outbox-token"]
    assert column(database, row_id, "failures") == 0
    assert relay.broker.endings == []


def test_an_unconfirmed_commit_leaves_the_row_committed(database: Database) -> None:
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.on_resolve = lambda _: Ended(Confirmation.UNANSWERED)
    relay.run()
    assert state_of(database, row_id) is State.COMMITTED


def test_a_cancelled_row_has_its_half_rolled_back(database: Database) -> None:
    # Given a row that is cancelled while its half is on the way
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.after_prepare = lambda: force(database, row_id, state=State.CANCELLED, token=None, lease_id=None)
    # When
    relay.run()
    # Then
    assert relay.broker.verdicts(Verdict.ROLLBACK) == [relay.broker.prepared[0].unique_id]
    assert relay.broker.verdicts(Verdict.COMMIT) == []
    assert state_of(database, row_id) is State.CANCELLED


def test_a_row_that_another_attempt_holds_has_our_half_rolled_back(database: Database) -> None:
    (row_id,) = added(database)
    relay = Relay(database)
    relay.broker.after_prepare = lambda: force(database, row_id, token="another", lease_id="another")
    relay.run()
    assert relay.broker.verdicts(Verdict.ROLLBACK) == [relay.broker.prepared[0].unique_id]
    assert state_of(database, row_id) is State.PENDING


def test_a_half_that_the_check_back_adopted_is_left_alone(database: Database) -> None:
    # Given a lease that runs out while the half is on its way, and a check-back that adopts that half
    (row_id,) = added(database)
    relay = Relay(database)

    def adopted() -> None:
        due_now(database, row_id)
        message = relay.broker.prepared[0]
        assert CommitLeases(database).adopt(row_id, message.properties["outbox-token"], relay.broker.half(message), 15)

    relay.broker.after_prepare = adopted
    # When the relay decides
    relay.run()
    # Then it sends nothing about that half
    assert relay.broker.endings == []
    assert state_of(database, row_id) is State.COMMITTED


def test_a_pass_whose_lease_is_over_decides_nothing(database: Database) -> None:
    (row_id,) = added(database)
    relay = Relay(database)

    def slow() -> None:
        relay.clock.now += relay.settings.lease + 1

    relay.broker.after_prepare = slow
    relay.run()
    assert relay.broker.endings == []
    assert state_of(database, row_id) is State.PENDING


class _Away(Decisions):
    """The database took nothing."""

    def decide(self, outcomes: Outcomes, commit_lease: float) -> set[int]:
        raise OperationalError("BEGIN", {}, ConnectionError("connection refused"))


class _AnswerLost(Decisions):
    """The database committed, and its answer never came."""

    def decide(self, outcomes: Outcomes, commit_lease: float) -> set[int]:
        super().decide(outcomes, commit_lease)
        raise OperationalError("COMMIT", {}, ConnectionError("server closed the connection"))


def test_an_unknown_decision_sends_neither_commit_nor_rollback(database: Database) -> None:
    (row_id,) = added(database)
    relay = Relay(database)
    relay.run(_AnswerLost(database))
    assert relay.broker.endings == []
    assert state_of(database, row_id) is State.COMMITTED


class _Skipping(Decisions):
    """Somebody else holds every row."""

    def decide(self, outcomes: Outcomes, commit_lease: float) -> set[int]:
        return set()


def test_a_database_that_goes_away_after_the_decision_ends_no_pass(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))

    # Given a row whose message the broker has made visible; When the database does not hear of it
    (row_id,) = added(database)
    relay = Relay(database)
    with monkeypatch.context() as patched:
        patched.setattr(CommitLeases, "settle", away)
        relay.run()
    # Then the reconciler finds the message once the commit lease is over
    assert [it.verdict for it in relay.broker.endings] == [Verdict.COMMIT]
    assert state_of(database, row_id) is State.COMMITTED
    # Given a half that was not chosen; When the database cannot say any more what its row has chosen
    added(database)
    with monkeypatch.context() as patched:
        patched.setattr(CommitLeases, "read", away)
        relay.run(_Skipping(database))
    # Then the half is left to the check-back
    assert len(relay.broker.endings) == 1


def test_passes_are_bounded_by_bytes(database: Database) -> None:
    added(database, 5, payload=b"x" * (4 << 20))
    relay = Relay(database)
    sizes = []
    while rows := relay.run():
        sizes.append(rows)
    assert sizes == [4, 1]
    with database.transaction() as connection:
        states = connection.execute(sa.select(outbox.c.state).distinct()).scalars().all()
    assert states == [State.DELIVERED]


def test_rows_that_were_not_sent_are_given_back_in_their_places(database: Database) -> None:
    # Given rows that a relay has claimed when it is told to stop, and younger ones
    old = added(database, 2)
    relay = Relay(database)
    leaving = Pass(relay.stage)
    attempts, _ = leaving.claim()
    young = added(database, 2)
    # When it gives them back
    leaving.release(attempts)
    # Then another one ships them at once, in their places
    assert relay.run() == 4
    assert [int(it.properties["outbox-id"]) for it in relay.broker.prepared] == old + young


def test_a_process_that_was_stopped_beyond_its_lease_sends_nothing(database: Database) -> None:
    # Given a plain row that a relay has claimed
    (row_id,) = added(database)
    force(database, row_id, mode=Mode.PLAIN)
    relay = Relay(database)
    one = Pass(relay.stage)
    attempts, since = one.claim()
    # When the process goes on after its lease is over; Then whatever became of the row meanwhile holds
    relay.clock.now += relay.settings.lease
    one.ship(attempts, since)
    assert relay.broker.prepared == []
    assert state_of(database, row_id) is State.PENDING
