"""Memories in front of the database: they spare it, they never decide."""

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from redis import Redis
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.consumer import Duplicate, Inbox, LeasedInbox, MemoryInbox, Message, Outcome, Park, Processed
from outbox.consumer.cached_inbox import CachedInbox
from outbox.consumer.claims import Claim
from outbox.consumer.memory_inbox import LocalMemory
from outbox.consumer.redis_inbox import RedisInbox
from outbox.consumer.remembering import Counters, Executing
from outbox.consumer.schema import inbox as inbox_table
from outbox.errors import SettingsError
from outbox.identity import fresh_token
from tests.forked import in_a_child, knows_of_threads, needs_fork
from tests.integration.consumer.shop import effects, keys_done, record, shop
from tests.services.redis import Redis as Server
from tests.services.require import require
from tests.unit.consumer.fakes import delivery

RECEIVED = delivery(keys=("k",), body=b"same")
Cached = Callable[..., CachedInbox]


@pytest.fixture
def cached(engine: Engine, redis_server: str) -> Cached:
    """Makes the same cached inbox again and again, as if each were another process of one consumer."""
    epoch = fresh_token()

    def make(url: str = redis_server, epoch: str = epoch, inner: Executing | None = None) -> CachedInbox:
        return CachedInbox(inner or shop(engine), url, epoch=epoch, timeout=60)  # what is counted must not hang on it

    return make


def claim(key: str) -> Claim:
    return Claim.of("stock", Message.of(delivery(keys=(key,), body=b"same"), key))


def test_a_hit_spares_the_database(cached: Cached, engine: Engine) -> None:
    # Given an effect that Redis remembers
    first, second = cached(), cached()
    assert first.process(RECEIVED) == Processed()
    # When the message comes again to another process / Then it is known, whatever the database holds
    with engine.begin() as connection:
        connection.execute(inbox_table.delete())
    assert second.process(RECEIVED) == Duplicate()
    assert (first.counters, second.counters) == (Counters(misses=1), Counters(hits=1))
    assert keys_done(engine) == ["k"]


def test_what_redis_forgot_the_unique_index_knows(cached: Cached, engine: Engine, redis_server: str) -> None:
    cached().process(RECEIVED)
    with Redis.from_url(redis_server) as client:
        client.flushall()
    inbox = cached()
    # When it comes again / Then the conflict is counted, and remembered
    assert [inbox.process(RECEIVED), inbox.process(RECEIVED)] == [Duplicate(), Duplicate()]
    assert inbox.counters == Counters(hits=1, misses=1, conflicts=1)
    assert keys_done(engine) == ["k"]


def test_without_redis_the_database_decides_alone(cached: Cached, engine: Engine) -> None:
    with require(Server) as server:
        inbox = cached(server.url)
        inbox.process(RECEIVED)
        server.kill()
        # When Redis is away / Then nothing waits for it, and nothing happens twice
        others = [delivery(keys=(key,)) for key in ("a", "b")]
        assert [inbox.process(each) for each in (RECEIVED, *others)] == [Duplicate(), Processed(), Processed()]
        assert inbox.counters.errors >= 3
        inbox.close()
    assert keys_done(engine) == ["a", "b", "k"]


def test_a_mark_before_the_commit_would_lose_the_message(engine: Engine, redis_server: str) -> None:
    # Given the naive cache, which marks first and acknowledges whatever is marked
    key = fresh_token()

    def naive(work: Callable[[], object]) -> str:
        with Redis.from_url(redis_server) as client:
            if not client.set(key, "1", nx=True):
                return "acknowledged"
            work()
            return "acknowledged"

    def rolled_back() -> None:
        with Session(engine) as session:
            session.execute(effects.insert().values(consumer="stock", key="k"))
            session.rollback()

    # When the transaction is rolled back, and the message comes again
    assert [naive(rolled_back), naive(lambda: pytest.fail("not called"))] == ["acknowledged"] * 2
    # Then it was acknowledged without an effect
    assert keys_done(engine) == []


def test_ours_remembers_only_what_was_committed(cached: Cached, engine: Engine) -> None:
    failures = iter([ValueError("no stock"), None])

    def on_paid(message: Message, session: Session) -> None:
        record(message, session)
        if error := next(failures):
            raise error

    inbox = cached(inner=shop(engine, on_paid))
    kinds = [type(inbox.process(RECEIVED)).__name__ for _ in range(3)]
    assert kinds == ["Retry", "Processed", "Duplicate"]
    assert keys_done(engine) == ["k"]


def test_a_restored_database_needs_a_new_epoch(cached: Cached, engine: Engine) -> None:
    # Given effects that a restored database does not have any more, while Redis says done
    cached().process(RECEIVED)
    with engine.begin() as connection:
        connection.execute(effects.delete())
        connection.execute(inbox_table.delete())
    assert cached().process(RECEIVED) == Duplicate()
    # When the operator raises the epoch / Then the message takes effect
    assert cached(epoch=fresh_token()).process(RECEIVED) == Processed()
    assert keys_done(engine) == ["k"]


def test_a_replay_forgets_row_and_mark(cached: Cached, engine: Engine) -> None:
    inbox = cached()
    inbox.process(RECEIVED)
    assert inbox.forget("k")
    assert not inbox.forget("k")
    assert inbox.process(RECEIVED) == Processed()
    assert keys_done(engine) == ["k", "k"]


def test_another_payload_is_the_database_s_to_judge(cached: Cached) -> None:
    inbox = cached()
    inbox.process(RECEIVED)
    assert isinstance(inbox.process(delivery(keys=("k",), body=b"another")), Park)


def test_a_mark_must_not_outlive_the_row(engine: Engine) -> None:
    inner = Inbox(engine, consumer="stock", retention=3600)
    with pytest.raises(SettingsError, match="ttl: 7200 s is longer than the 3600 s"):
        CachedInbox(inner, "redis://127.0.0.1:1/0", ttl=7200)
    with pytest.raises(SettingsError, match="ttl: 7200 s is longer than the 3600 s"):
        MemoryInbox(inner, ttl=7200)


def test_the_status_is_visible_while_the_work_is_under_way(cached: Cached, engine: Engine) -> None:
    # Given C5 over C3
    seen: list[object] = []
    inner = LeasedInbox(engine, consumer="stock")
    inner.handler(topic="payments")(lambda _message, _lease: seen.append(_done_at(engine)))
    inbox = cached(inner=inner)
    # When a message is processed / Then others saw it being worked on, and see it done
    assert inbox.process(RECEIVED) == Processed()
    assert seen == [None]
    assert _done_at(engine) is not None


def _done_at(engine: Engine) -> object:
    with engine.connect() as connection:
        return connection.execute(sa.select(inbox_table.c.done_at)).scalar_one()


def test_a_local_memory_is_bounded_and_drops_what_is_asked_for_least() -> None:
    memory = LocalMemory(size=2, ttl=60)
    for key in ("a", "b"):
        memory.remember(claim(key))
    assert memory.knows(claim("a"))
    memory.remember(claim("c"))
    assert [memory.knows(claim(key)) for key in ("a", "b", "c")] == [True, False, True]


def test_a_local_memory_forgets_with_time() -> None:
    memory = LocalMemory(size=2, ttl=0.0)
    memory.remember(claim("a"))
    assert not memory.knows(claim("a"))


@needs_fork
@knows_of_threads
def test_a_forked_child_begins_with_an_empty_memory() -> None:
    memory = LocalMemory(size=2, ttl=60)
    memory.remember(claim("a"))
    assert in_a_child(lambda: memory.knows(claim("a"))) == "False"
    assert memory.knows(claim("a"))


@needs_fork
@knows_of_threads
def test_a_forked_child_does_not_wait_for_a_key_that_flies_in_its_parent(redis_server: str) -> None:
    # Given a process in which a thread works on a key
    entered, go = threading.Event(), threading.Event()

    def on_paid(*_: object) -> None:
        entered.set()
        assert go.wait(60)

    inbox = MemoryInbox(RedisInbox(redis_server, consumer=f"stock-{fresh_token()}"))
    inbox.handler(topic="payments")(on_paid)
    thread = threading.Thread(target=inbox.process, args=(RECEIVED,))
    thread.start()
    assert entered.wait(60)
    # When a child of it has the same / Then the strategy behind decides
    assert in_a_child(lambda: type(inbox.process(RECEIVED)).__name__) == "InProgress"
    go.set()
    thread.join()


def test_one_key_in_many_threads_flies_once(engine: Engine) -> None:
    # Given a handler that waits until another thread has the same message
    entered, calls = threading.Event(), list[str]()

    def on_paid(message: Message, session: Session) -> None:
        calls.append(message.key)
        record(message, session)
        entered.set()
        threading.Event().wait(0.3)

    inbox = MemoryInbox(shop(engine, on_paid))
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(inbox.process(RECEIVED))) for _ in range(4)]
    # When four take it at once
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then one works, and the others wait and find it done, without a question to the database
    assert sorted(type(each).__name__ for each in outcomes) == ["Duplicate"] * 3 + ["Processed"]
    assert calls == ["k"]
    assert inbox.counters == Counters(hits=3, misses=1)
