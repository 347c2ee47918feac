"""Batches on real databases: each message has an outcome of its own, and one that fails takes no other with it."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outbox.brokers.source import Delivery
from outbox.consumer import (
    BatchInbox,
    Duplicate,
    Filtered,
    InProgress,
    Message,
    NoKey,
    Outcome,
    Park,
    Permanent,
    Processed,
    Retry,
    Runner,
    RunnerSettings,
)
from outbox.consumer.claims import Claim, insert_undone, locked
from outbox.consumer.drivers import opened
from outbox.consumer.errors import LeaseLost
from outbox.consumer.leases import Claimed
from outbox.consumer.state_table import StateTable, finish
from outbox.errors import SettingsError
from tests.integration.consumer.shop import effects, keys_done, record, rows
from tests.integration.consumer.test_failures import opened as prepared
from tests.unit.consumer.fakes import FakeSource, delivery

Step = Callable[[Sequence[Message]], object]


def batched(engine: Engine, step: Step = lambda _: None, batch: int = 100) -> BatchInbox:
    """Records each message, then steps."""
    inbox = BatchInbox(engine, consumer="stock", batch=batch, lock_timeout=20)

    @inbox.handler(topic="payments")
    def on_events(messages: Sequence[Message], session: Session) -> None:
        for message in messages:
            record(message, session)
        step(messages)

    return inbox


def events(*keys: str) -> list[Delivery]:
    return [delivery(keys=(key,), body=key.encode()) for key in keys]


def poison(*keys: str) -> Step:
    """Fails for each batch that holds one of these."""

    def step(messages: Sequence[Message]) -> None:
        if found := [message.key for message in messages if message.key in keys]:
            raise ValueError(f"cannot take {found}")

    return step


def kinds(outcomes: Sequence[Outcome]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


def test_new_ones_are_handled_at_once_and_repeats_are_known(engine: Engine) -> None:
    # Given a batch, part of which was there before
    handled: list[int] = []
    inbox = batched(engine, lambda messages: handled.append(len(messages)))
    inbox.process_batch(events("a", "b"))
    # When it comes with new ones / Then these alone are handled, together
    outcomes = inbox.process_batch(events("c", "a", "d", "b", "e"))
    assert kinds(outcomes) == ["Processed", "Duplicate", "Processed", "Duplicate", "Processed"]
    assert handled == [2, 3]
    # And a batch of nothing but repeats does nothing
    assert inbox.process_batch(events("a", "e")) == [Duplicate(), Duplicate()]
    assert keys_done(engine) == ["a", "b", "c", "d", "e"]


def test_each_message_of_a_mixed_batch_has_its_own_outcome(engine: Engine) -> None:
    # Given a duplicate, good ones, a failing one, another payload, no key, no handler
    inbox = batched(engine, poison("bad"))
    inbox.process_batch(events("old"))
    mixed = [
        *events("old", "one", "bad", "two"),
        delivery(keys=("old",), body=b"another payload"),
        delivery(keys=()),
        delivery(topic="another"),
    ]
    # When they come in one batch / Then only the failing one comes again, and no other waits for it
    outcomes = inbox.process_batch(mixed)
    assert [type(outcome) for outcome in outcomes] == [Duplicate, Processed, Retry, Processed, Park, NoKey, Filtered]
    assert keys_done(engine) == ["old", "one", "two"]
    assert rows(engine) == 3


def test_one_duplicate_that_answers_for_its_batch_loses_the_others(engine: Engine) -> None:
    # Given the naive batch: one insert for all, and a violation means "was there before"
    def naive(keys: Sequence[str]) -> str:
        try:
            with engine.begin() as connection:
                connection.execute(sa.text("INSERT INTO seen (k) VALUES (:k)"), [{"k": key} for key in keys])
                connection.execute(effects.insert(), [{"consumer": "stock", "key": key} for key in keys])
        except IntegrityError:
            return "acknowledged as duplicates"
        return "acknowledged"

    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE seen (k VARCHAR(20) PRIMARY KEY)"))
    naive(["old"])
    # When a batch holds one repeat / Then its new messages are acknowledged without an effect
    assert naive(["old", "new"]) == "acknowledged as duplicates"
    assert keys_done(engine) == ["old"]


@pytest.mark.parametrize("bad", [[0], [6], [3, 4], [0, 1, 2, 3, 4, 5, 6]])
def test_poison_is_found_wherever_it_is(engine: Engine, bad: list[int]) -> None:
    keys = [f"k{number}" for number in range(7)]
    inbox = batched(engine, poison(*(keys[place] for place in bad)))
    outcomes = inbox.process_batch(events(*keys))
    assert [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Retry)] == bad
    assert keys_done(engine) == [key for place, key in enumerate(keys) if place not in bad]


def test_repeats_inside_a_batch_follow_the_first(engine: Engine) -> None:
    inbox = batched(engine, poison("bad"))
    outcomes = inbox.process_batch([*events("a", "bad", "a", "bad"), delivery(keys=("a",), body=b"other")])
    assert kinds(outcomes) == ["Processed", "Retry", "Duplicate", "Retry", "Park"]
    assert keys_done(engine) == ["a"]


def test_what_is_permanent_is_parked_alone(engine: Engine) -> None:
    def refuse(messages: Sequence[Message]) -> None:
        if any(message.key == "never" for message in messages):
            raise Permanent("no such page")

    outcomes = batched(engine, refuse).process_batch(events("a", "never", "b"))
    assert kinds(outcomes) == ["Processed", "Park", "Processed"]


def test_batches_in_opposite_orders_do_not_deadlock(engine: Engine) -> None:
    # Given threads whose batches hold the same keys in other orders
    keys = [f"k{number:02}" for number in range(40)]
    barrier, outcomes = threading.Barrier(4), list[Outcome]()

    def take(seed: int) -> None:
        mine = random.Random(seed).sample(keys, len(keys))
        barrier.wait()
        outcomes.extend(batched(engine).process_batch(events(*mine)))

    threads = [threading.Thread(target=take, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then each key has one effect, and nobody failed for another reason than a key in work
    counted = Counter(kinds(outcomes))
    assert counted["Processed"] == len(keys)
    assert set(counted) <= {"Processed", "Duplicate", "InProgress", "Retry"}
    assert keys_done(engine) == keys


def test_a_store_that_is_away_is_asked_once_not_bisected(engine: Engine) -> None:
    handled: list[int] = []
    url = "sqlite:////nowhere/at/all.db" if engine.dialect.name == "sqlite" else engine.url.set(port=1)
    inbox = batched(sa.create_engine(url), lambda messages: handled.append(len(messages)))
    outcomes = inbox.process_batch(events("a", "b", "c"))
    assert all(isinstance(outcome, Retry) and outcome.outage for outcome in outcomes)
    assert handled == []


def test_the_runner_fills_batches_and_acknowledges_each_message(engine: Engine) -> None:
    # Given more messages than a batch, a poisoned one among them
    sizes: list[int] = []

    def step(messages: Sequence[Message]) -> None:
        sizes.append(len(messages))
        poison("k13")(messages)

    source, stop = FakeSource(redelivers=False), threading.Event()
    keys = [f"k{number:02}" for number in range(40)]
    source.put(*events(*keys))
    runner = Runner(source, batched(engine, step, batch=16), RunnerSettings(threads=1, receive_wait=0.02))
    thread = threading.Thread(target=runner.run, args=(stop,))
    thread.start()
    # When the runner works on them
    source.expect(lambda: len(source.acknowledged) == 39 and bool(source.returned), "all but one acknowledged")
    stop.set()
    thread.join()
    # Then it took many at once, and only the poisoned one comes again
    assert max(sizes) > 8
    assert len(source.returned) == 1
    assert keys_done(engine) == [key for key in keys if key != "k13"]


def test_a_batch_that_no_statement_can_name_is_refused(engine: Engine) -> None:
    with pytest.raises(SettingsError, match="batch: 0 must be 1 to"):
        BatchInbox(engine, consumer="stock", batch=0)


def undone(engine: Engine) -> Delivery:
    """A message whose row a long handler of an ``Inbox`` has reserved."""
    (received,) = events("a")
    with engine.begin() as connection:
        insert_undone(connection, Claim.of("stock", Message.of(received, "a")))
    return received


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])  # SQLite locks no rows
def test_a_key_that_a_long_handler_works_on_comes_again(request: pytest.FixtureRequest, dialect: str) -> None:
    # Given a handler that has the row locked
    with request.getfixturevalue(f"{dialect}_copies")(None) as url, prepared(url) as engine:
        received = undone(engine)
        with engine.begin() as other:
            assert locked(other, Claim.of("stock", Message.of(received, "a"))) is not None
            # When a batch brings its key / Then that one comes again, and no other waits for it
            assert batched(engine).process_batch([received, *events("b")]) == [InProgress(), Processed()]
        assert keys_done(engine) == ["b"]


def test_a_key_under_a_lease_comes_again_until_the_lease_is_over(engine: Engine) -> None:
    # Given the row of a LeasedInbox
    (received,) = events("a")
    claim = Claim.of("stock", Message.of(received, "a"))
    taken = StateTable(engine).claim(claim, 60)
    assert isinstance(taken, Claimed)
    assert batched(engine).process_batch([received]) == [InProgress()]
    # When its owner is gone / Then the batch takes it over, and an owner that comes back cannot finish
    StateTable(engine).release(claim, taken.token)
    assert batched(engine).process_batch([received, *events("b")]) == [Processed(), Processed()]
    with opened(engine, 5) as connection, pytest.raises(LeaseLost):
        finish(connection, claim, taken.token)
    assert keys_done(engine) == ["a", "b"]


def test_the_undone_row_of_a_dead_owner_is_taken_over(engine: Engine) -> None:
    # Given a row that nobody works on, and a batch that fails at first
    received = undone(engine)
    failures = iter([True, False])

    def step(_: Sequence[Message]) -> None:
        if next(failures, False):
            raise ValueError("first")

    inbox = batched(engine, step)
    other = delivery(keys=("a",), body=b"another payload")
    # Then it is processed once, and another payload is never taken for it
    assert [type(each) for each in inbox.process_batch([other])] == [Park]
    assert kinds(inbox.process_batch([received])) == ["Retry"]
    assert keys_done(engine) == []
    assert inbox.process_batch([received]) == [Processed()]
    assert inbox.process_batch([received]) == [Duplicate()]
    assert keys_done(engine) == ["a"]
    assert rows(engine) == 1
