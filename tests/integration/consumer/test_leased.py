"""Long handlers under a lease: renewed while they work, succeeded when they die, fenced when they come back."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.consumer import (
    Duplicate,
    FencedLease,
    InProgress,
    LeasedInbox,
    LeaseLost,
    Message,
    Outcome,
    Processed,
    Retry,
)
from outbox.consumer.claims import Claim
from outbox.consumer.drivers import opened
from outbox.consumer.leases import Busy, Claimed, Finished
from outbox.consumer.schema import inbox as inbox_table
from outbox.consumer.state_table import StateTable, finish
from outbox.store.clock import utc_after
from tests.integration.consumer.leases import LEASE, Clock, nearly_over, renewed, renewed_in, renewing_all_the_time
from tests.integration.consumer.shop import effects, keys_done, record, shop
from tests.integration.consumer.test_processes import child, line
from tests.unit.consumer.fakes import delivery
from tests.waiting import expect_soon

CLAIM = Claim.of("stock", Message.of(delivery(keys=("k",), body=b"same"), "k"))
RECEIVED = delivery(keys=("k",), body=b"same")
HOUR = 3600.0


@pytest.fixture
def table(engine: Engine) -> StateTable:
    return StateTable(engine)


def leased(engine: Engine, handler: Any, lease: float = 60.0) -> LeasedInbox:
    inbox = LeasedInbox(engine, consumer="stock", lease=lease)
    inbox.handler(topic="payments")(handler)
    return inbox


def writes(message: Message, lease: FencedLease) -> None:
    with lease.transaction() as session:
        record(message, session)


def row(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(sa.select(inbox_table)).one()


def lease_over(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(inbox_table.update().values(lease_until=utc_after(-1)))


def claimed(table: StateTable) -> int:
    taken = table.claim(CLAIM, HOUR)
    assert isinstance(taken, Claimed)
    return taken.token


def effect_under(engine: Engine, token: int) -> None:
    """The business transaction of the owner of a token."""
    with opened(engine, 5) as connection:
        record(Message.of(RECEIVED, "k"), Session(bind=connection))
        finish(connection, CLAIM, token)
        connection.commit()


def test_a_key_has_one_owner_until_its_lease_is_over(engine: Engine, table: StateTable) -> None:
    # Given an owner
    first = claimed(table)
    # When another one claims / Then it is told how long to wait
    busy = table.claim(CLAIM, HOUR)
    assert isinstance(busy, Busy)
    assert HOUR / 2 < busy.remaining <= HOUR
    # When the lease is over / Then it is succeeded, under a higher token, and the attempts are counted
    lease_over(engine)
    second = claimed(table)
    assert second > first
    assert row(engine).attempts == 2


def test_a_zombie_s_effect_is_rolled_back(engine: Engine, table: StateTable) -> None:
    # Given an owner whose lease ran out, and its successor
    zombie = claimed(table)
    lease_over(engine)
    successor = claimed(table)
    # When the zombie comes back / Then it can neither renew, nor finish, nor release
    assert not table.renew(CLAIM, zombie, 60)
    with pytest.raises(LeaseLost):
        effect_under(engine, zombie)
    table.release(CLAIM, zombie)
    assert isinstance(table.claim(CLAIM, 60), Busy)
    # And the successor's effect is the only one
    effect_under(engine, successor)
    assert keys_done(engine) == ["k"]
    assert table.claim(CLAIM, 60) == Finished()


def test_without_the_token_a_zombie_s_effect_would_stay(engine: Engine, table: StateTable) -> None:
    # Given the naive finish, which asks only whether the row is undone
    def naive(_token: int) -> None:
        with engine.begin() as connection:
            record(Message.of(RECEIVED, "k"), Session(bind=connection))
            connection.execute(inbox_table.update().values(done_at=utc_after(0)))

    first = claimed(table)
    lease_over(engine)
    second = claimed(table)
    # When successor and zombie both finish / Then the stock is deducted twice
    naive(second)
    naive(first)
    assert keys_done(engine) == ["k", "k"]


def test_a_lease_is_renewed_for_as_long_as_the_handler_works(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a handler that works for several times its lease, while others try
    clock, seen = Clock(monkeypatch), list[Outcome]()
    other = leased(engine, writes)

    def slow(message: Message, lease: FencedLease) -> None:
        def is_renewed() -> bool:
            lease.check()
            seen.append(other.process(RECEIVED))
            return renewed_in(engine) and renewed(lease, clock)

        for _ in range(5):
            clock.passes()
            nearly_over(engine)
            expect_soon(is_renewed, "renewed")
        writes(message, lease)

    inbox = leased(engine, slow, lease=LEASE)
    renewing_all_the_time(inbox)
    # When it is done
    assert inbox.process(RECEIVED) == Processed()
    # Then nobody else has had the key
    assert {type(outcome) for outcome in seen} == {InProgress}
    assert keys_done(engine) == ["k"]


def test_a_handler_that_lost_its_lease_is_told_and_nothing_is_kept(engine: Engine) -> None:
    # Given a handler whose key another one has while it works
    stopped = False

    def robbed(message: Message, lease: FencedLease) -> None:
        nonlocal stopped
        with engine.begin() as connection:
            other = {"token": inbox_table.c.token + 1, "lease_until": utc_after(LEASE)}
            connection.execute(inbox_table.update().values(other))
        expect_soon(lambda: not lease.held, "told")
        with pytest.raises(LeaseLost):
            lease.check()
        stopped = True
        writes(message, lease)

    inbox = leased(engine, robbed, lease=LEASE)
    renewing_all_the_time(inbox)
    # When it goes on all the same / Then its effect is refused
    outcome = inbox.process(RECEIVED)
    assert isinstance(outcome, Retry)
    assert stopped
    assert keys_done(engine) == []


def test_a_failure_gives_the_key_back_at_once_and_counts_the_attempt(engine: Engine) -> None:
    failures = iter([ValueError("first"), None])

    def on_paid(message: Message, lease: FencedLease) -> None:
        if error := next(failures):
            raise error
        writes(message, lease)

    inbox = leased(engine, on_paid)
    assert inbox.process(RECEIVED) == Retry("ValueError: first")
    assert inbox.process(RECEIVED) == Processed()
    assert (row(engine).attempts, row(engine).token, row(engine).lease_until) == (2, 2, None)


def test_operators_see_what_is_being_worked_on(engine: Engine) -> None:
    def looked_at(message: Message, lease: FencedLease) -> None:
        seen = row(engine)
        assert (seen.done_at, seen.token, seen.attempts) == (None, lease.token, 1)
        assert seen.lease_until is not None

    assert leased(engine, looked_at).process(RECEIVED) == Processed()
    assert row(engine).done_at is not None


def test_an_effect_elsewhere_is_remembered_when_the_handler_returns(engine: Engine) -> None:
    calls: list[str] = []
    inbox = leased(engine, lambda message, _lease: calls.append(message.key))
    assert [inbox.process(RECEIVED), inbox.process(RECEIVED)] == [Processed(), Duplicate()]
    assert calls == ["k"]


def test_a_second_transaction_is_refused_and_the_first_one_stands(engine: Engine) -> None:
    def twice(message: Message, lease: FencedLease) -> None:
        writes(message, lease)
        writes(message, lease)

    inbox = leased(engine, twice)
    outcome = inbox.process(RECEIVED)
    assert isinstance(outcome, Retry)
    assert "a second time" in outcome.reason
    assert inbox.process(RECEIVED) == Duplicate()
    assert keys_done(engine) == ["k"]


def test_a_consumer_may_go_over_to_leases_and_back(engine: Engine) -> None:
    # Given a message that a LeasedInbox works on when an Inbox of the same name gets it as well
    inbox, taken = shop(engine), list[Outcome]()

    def overtaken(message: Message, lease: FencedLease) -> None:
        taken.append(inbox.process(RECEIVED))
        writes(message, lease)

    # When both have tried / Then one effect is left, and both know it from then on
    outcome = leased(engine, overtaken).process(RECEIVED)
    assert sorted(type(each).__name__ for each in (outcome, *taken)) == ["Processed", "Retry"]
    assert keys_done(engine) == ["k"]
    assert inbox.process(RECEIVED) == Duplicate()


@pytest.fixture
def killed(migrated_url: str, engine: Engine) -> Iterator[None]:
    """A process was killed while it held the key under a lease of two seconds."""
    with child("lease", migrated_url, "2") as process:
        assert line(process) == "here"
    yield
    with engine.begin() as connection:
        connection.execute(effects.delete())


@pytest.mark.usefixtures("killed")
def test_a_dead_owner_is_succeeded(engine: Engine) -> None:
    inbox = leased(engine, writes)
    expect_soon(lambda: inbox.process(RECEIVED) == Processed(), "the key of a dead process is free")
    assert keys_done(engine) == ["k"]
    assert row(engine).attempts == 2
