"""Coroutines as handlers, of each strategy that takes them, on real stores."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.brokers.source import Delivery
from outbox.consumer import BatchInbox, Duplicate, Inbox, LeasedInbox, Message, Outcome, Park, Processed, Retry
from outbox.consumer.bridge import AsyncLease, Handler
from outbox.consumer.leases import Lease
from outbox.consumer.redis_inbox import RedisInbox
from outbox.errors import SettingsError
from outbox.identity import fresh_token
from outbox.schema import outbox as outbox_table
from tests.integration.consumer.leases import LEASE, nearly_over, renewed_in, renewing_all_the_time
from tests.integration.consumer.shop import count, effects, keys_done, reasons, record, rows
from tests.integration.strategies.rig import asynchronous
from tests.unit.consumer.fakes import delivery
from tests.waiting import expect_soon

RECEIVED = delivery(keys=("k",), body=b"same")


@pytest.fixture(name="asynchronous")
def fresh_asynchronous(engine: Engine) -> AsyncEngine:
    return asynchronous(engine)


async def writes(message: Message, session: AsyncSession) -> None:
    await session.execute(effects.insert().values(consumer="stock", key=message.key))


def test_effect_message_and_inbox_row_of_a_coroutine_are_one(asynchronous: AsyncEngine, engine: Engine) -> None:
    # Given a coroutine that writes, sends, and fails the first time
    inbox, producer = Inbox(asynchronous, consumer="stock"), Outbox(origin="tests")
    failures = iter([ValueError("first"), None])

    @inbox.handler(topic="payments")
    async def on_paid(message: Message, session: AsyncSession) -> None:
        await writes(message, session)
        await producer.add(session, topic="shipments", key=message.key, payload={"n": 1})
        if error := next(failures):
            raise error

    inbox.check()
    # When it fails / Then nothing is kept; when it succeeds / Then everything, once
    assert inbox.process(RECEIVED) == Retry("ValueError: first")
    assert (keys_done(engine), rows(engine)) == ([], 0)
    assert [inbox.process(RECEIVED), inbox.process(RECEIVED)] == [Processed(), Duplicate()]
    with engine.connect() as connection:
        assert count(connection, outbox_table) == 1
    assert keys_done(engine) == ["k"]
    inbox.close()


def test_a_coroutine_cannot_end_the_transaction(asynchronous: AsyncEngine, engine: Engine) -> None:
    inbox = Inbox(asynchronous, consumer="stock")

    @inbox.handler(topic="payments")
    async def on_paid(message: Message, session: AsyncSession) -> None:
        await writes(message, session)
        await session.commit()

    outcome = inbox.process(RECEIVED)
    assert isinstance(outcome, Retry)
    assert outcome.reason.startswith("TransactionBroken")
    assert keys_done(engine) == []
    inbox.close()


def test_a_swallowed_database_error_is_no_success(asynchronous: AsyncEngine, engine: Engine) -> None:
    inbox = Inbox(asynchronous, consumer="stock")

    @inbox.handler(topic="payments")
    async def on_paid(message: Message, session: AsyncSession) -> None:
        await writes(message, session)
        try:
            await session.execute(sa.text("SELECT * FROM no_such_table"))
        except sa.exc.DBAPIError:
            return

    outcome = inbox.process(RECEIVED)
    # On PostgreSQL such an error aborts the transaction; the others undo the statement alone
    assert isinstance(outcome, Retry if engine.dialect.name == "postgresql" else Processed)
    assert keys_done(engine) == ([] if engine.dialect.name == "postgresql" else ["k"])
    inbox.close()


def test_a_coroutine_that_exits_or_is_cancelled_ends_itself_alone(asynchronous: AsyncEngine, engine: Engine) -> None:
    inbox = Inbox(asynchronous, consumer="stock")
    failures: Iterator[BaseException | None] = iter([SystemExit(3), asyncio.CancelledError(), None])

    @inbox.handler(topic="payments")
    async def on_paid(message: Message, session: AsyncSession) -> None:
        await writes(message, session)
        if error := next(failures):
            raise error

    with pytest.raises(SystemExit):
        inbox.process(RECEIVED)
    with pytest.raises(asyncio.CancelledError):
        inbox.process(RECEIVED)
    assert inbox.process(RECEIVED) == Processed()
    assert keys_done(engine) == ["k"]
    inbox.close()


def test_coroutines_of_several_workers_run_side_by_side(asynchronous: AsyncEngine, engine: Engine) -> None:
    # Given coroutines each of which waits for the other, outside SQLite's one writing transaction at a time
    wanted = 1 if engine.dialect.name == "sqlite" else 2
    inbox, arrived = Inbox(asynchronous, consumer="stock"), list[str]()

    @inbox.handler(topic="payments")
    async def on_paid(message: Message, session: AsyncSession) -> None:
        arrived.append(message.key)
        while len(arrived) < wanted:
            await asyncio.sleep(0.01)
        await writes(message, session)

    outcomes: list[Outcome] = []

    def take(received: Delivery) -> None:
        outcomes.append(inbox.process(received))

    threads = [threading.Thread(target=take, args=(delivery(keys=(key,)),)) for key in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then both are done
    assert outcomes == [Processed(), Processed()]
    assert keys_done(engine) == ["a", "b"]
    inbox.close()


def test_a_plain_function_may_stand_beside_coroutines(asynchronous: AsyncEngine, engine: Engine) -> None:
    inbox = Inbox(asynchronous, consumer="stock")

    @inbox.handler(topic="payments")
    def on_paid(message: Message, session: Session) -> None:
        record(message, session)

    assert inbox.process(RECEIVED) == Processed()
    assert keys_done(engine) == ["k"]
    inbox.close()


def test_a_coroutine_under_a_lease(asynchronous: AsyncEngine, engine: Engine) -> None:
    # Given a coroutine that works until its lease, which was nearly over, is renewed by another thread
    inbox = LeasedInbox(asynchronous, consumer="stock", lease=LEASE)
    renewing_all_the_time(inbox)

    @inbox.handler(topic="payments")
    async def on_paid(message: Message, lease: AsyncLease) -> None:
        await asyncio.to_thread(nearly_over, engine)
        await asyncio.to_thread(expect_soon, lambda: renewed_in(engine), "renewed")
        lease.check()
        async with lease.transaction() as session:
            await writes(message, session)

    # When its message comes twice / Then it has one effect
    assert [inbox.process(RECEIVED), inbox.process(RECEIVED)] == [Processed(), Duplicate()]
    assert keys_done(engine) == ["k"]
    expect_soon(lambda: inbox._execution._keeper._thread is None, "nothing is renewed on a loop that ends")
    inbox.close()


def test_a_coroutine_over_a_batch(asynchronous: AsyncEngine, engine: Engine) -> None:
    inbox = BatchInbox(asynchronous, consumer="stock")

    @inbox.handler(topic="payments")
    async def on_events(messages: Sequence[Message], session: AsyncSession) -> None:
        for message in messages:
            await writes(message, session)
            if message.key == "bad":
                raise ValueError("bad")

    outcomes = inbox.process_batch([delivery(keys=(key,)) for key in ("a", "bad", "b")])
    assert [type(outcome) for outcome in outcomes] == [Processed, Retry, Processed]
    assert keys_done(engine) == ["a", "b"]
    inbox.close()


def test_parking_forgetting_and_purging_work_on_the_loop(asynchronous: AsyncEngine, engine: Engine) -> None:
    inbox = Inbox(asynchronous, consumer="stock")
    inbox.handler(topic="payments")(writes)
    inbox.process(RECEIVED)
    other = delivery(keys=("k",), body=b"other")
    assert isinstance(inbox.process(other), Park)
    assert inbox.park(other, "another payload")
    assert reasons(engine) == ["another payload"]
    assert inbox.purge() == 0
    assert inbox.forget("k")
    assert inbox.process(RECEIVED) == Processed()
    inbox.close()


async def on_paid_elsewhere(seen: list[str], message: Message, lease: Lease) -> None:
    await asyncio.sleep(0)
    lease.check()
    seen.append(message.key)


class Elsewhere:
    """A handler that is an object."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    async def __call__(self, message: Message, lease: Lease) -> None:
        await on_paid_elsewhere(self._seen, message, lease)


@pytest.mark.parametrize("made", [partial(partial, on_paid_elsewhere), Elsewhere])
def test_a_coroutine_with_effects_outside_sql(redis_server: str, made: Callable[[list[str]], Handler]) -> None:
    seen: list[str] = []
    inbox = RedisInbox(redis_server, consumer=f"stock-{fresh_token()}")
    inbox.handler(topic="payments")(made(seen))
    assert [inbox.process(RECEIVED), inbox.process(RECEIVED)] == [Processed(), Duplicate()]
    assert seen == ["k"]
    inbox.close()


def test_a_driver_that_hides_its_transactions_is_refused() -> None:
    class Hiding(AsyncEngine):
        def __init__(self) -> None:
            self.sync_engine = sa.create_mock_engine("postgresql+psycopg://", lambda *_: None)  # type: ignore[assignment]

    engine = Hiding()
    engine.sync_engine.dialect.driver = "asyncpg"
    with pytest.raises(SettingsError, match="asyncpg"):
        Inbox(engine, consumer="stock")
