"""Each dedup strategy against the same work without dedup, side by side on a durable PostgreSQL and a Redis.

    python -m benchmarks.dedup [--messages 300] [--rounds 15]

The work is a business transaction: one stock row updated, one ledger row inserted, COMMIT with its log on disk. Each
round takes every side once, for the same number of messages; the figures are medians of the rounds' ratios. The Redis
code that people write by hand (SET NX, then the work) and the idempotency utility of aws-lambda-powertools on Redis, if
it is installed, stand beside ours; neither keeps effect and memory together.

The last line is one JSON object: ``c1_cost`` (time of the inbox over that of the work alone), ``c1_duplicate_vs_work``
and ``c5_hit_vs_work`` (how often a repeat fits into the time of the work), ``c6_vs_c1`` (messages of batches of 100
over single ones in the same time) and ``c7_vs_one`` (16 workers over one, 5 ms a message, claims in Redis; the 16 get
four times as many messages, since a round's last ones leave most of them idle).
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from benchmarks.dedup_peers import Side, by_hand, powertools
from benchmarks.stand_ins import StandInSource
from outbox import migrate
from outbox.brokers.source import Delivery
from outbox.consumer import (
    BatchInbox,
    BusinessConsumer,
    Duplicate,
    Inbox,
    LeasedInbox,
    MemoryInbox,
    Processed,
    ledger_entry,
)
from outbox.consumer.cached_inbox import CachedInbox
from outbox.consumer.consumer import Consumer
from outbox.consumer.redis_inbox import RedisInbox
from outbox.consumer.remembering import Executing
from outbox.consumer.runner import Runner, RunnerSettings
from outbox.store.database import Database
from tests.services.databases import fresh_database
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.unit.consumer.fakes import delivery

#: Messages of one batch, workers of the pool, seconds that a message of the pool takes.
BATCH: Final = 100
WORKERS: Final = 16
PAUSE: Final = 0.005
POOL: Final = f"C7 {WORKERS} workers"

C = TypeVar("C", bound=Consumer | MemoryInbox)

metadata = sa.MetaData()
stock = sa.Table("stock", metadata, sa.Column("sku", sa.Integer, primary_key=True), sa.Column("quantity", sa.Integer))
ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("key", sa.String(64), nullable=False),
    sa.UniqueConstraint("key", name="uq_ledger_key"),
)


def work(session: Session, key: str) -> None:
    """The business transaction's statements."""
    session.execute(stock.update().where(stock.c.sku == hash(key) % 100).values(quantity=stock.c.quantity - 1))
    session.execute(ledger.insert().values(key=key))


def messages(number: int, numbers: Iterator[int]) -> list[Delivery]:
    """Fresh messages, each with a key that nobody has seen."""
    return [delivery(keys=(f"order-{next(numbers)}",), body=b"x" * 200) for _ in range(number)]


def alone(engine: Engine) -> Side:
    """The work without dedup."""

    def run(deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            with Session(engine) as session, session.begin():
                work(session, each.keys[0])

    return run


def through(consumer: Executing) -> Side:
    """The work behind a strategy, one message at a time; all of them must be new."""

    def run(deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            outcome = consumer.process(each)
            assert outcome == Processed(), outcome

    return run


def repeated(consumer: Executing) -> Side:
    """Repeats of one message."""
    first = delivery(keys=(f"repeated-{consumer.consumer}",), body=b"x")
    through(consumer)([first])

    def run(deliveries: Sequence[Delivery]) -> None:
        for _ in deliveries:
            outcome = consumer.process(first)
            assert outcome == Duplicate(), outcome

    return run


def handled(consumer: C, handler: Callable[..., object]) -> C:
    """The consumer with the handler for all messages."""
    consumer.handler(topic="payments")(handler)
    return consumer


def inbox(engine: Engine, name: str) -> Inbox:
    """C1."""
    return handled(Inbox(engine, consumer=name), lambda message, session: work(session, message.key))


def leased(engine: Engine) -> LeasedInbox:
    """C3."""

    def on_paid(message: Any, lease: Any) -> None:
        with lease.transaction() as session:
            work(session, message.key)

    return handled(LeasedInbox(engine, consumer="c3"), on_paid)


def business(engine: Engine) -> BusinessConsumer:
    """C4: the ledger row itself tells repeats."""

    def on_paid(message: Any, session: Session) -> object:
        said = ledger_entry(session, ledger, {"key": message.key}, unique=("key",))
        session.execute(stock.update().where(stock.c.sku == hash(message.key) % 100).values(quantity=0))
        return said

    return handled(BusinessConsumer(engine, consumer="c4"), on_paid)


def remembered(engine: Engine, url: str) -> RedisInbox:
    """C2: the work is a transaction of its own."""

    def on_paid(message: Any, _lease: object) -> None:
        with Session(engine) as session, session.begin():
            work(session, message.key)

    return handled(RedisInbox(url, consumer="c2"), on_paid)


def batched(engine: Engine) -> Side:
    """C6, in batches of ``BATCH``."""

    def on_paid(taken: Sequence[Any], session: Session) -> None:
        session.execute(stock.update().where(stock.c.sku == 1).values(quantity=stock.c.quantity - len(taken)))
        session.execute(ledger.insert(), [{"key": message.key} for message in taken])

    consumer = handled(BatchInbox(engine, consumer="c6", batch=BATCH), on_paid)

    def run(deliveries: Sequence[Delivery]) -> None:
        for start in range(0, len(deliveries), BATCH):
            outcomes = consumer.process_batch(deliveries[start : start + BATCH])
            assert set(outcomes) == {Processed()}, outcomes

    return run


def pooled(url: str, threads: int) -> Side:
    """C7 over C2: the runner with so many workers; a message takes ``PAUSE`` seconds in something that is not SQL.

    The runner starts once and stops with the process: how fast threads start and receivers notice a stop, some 60 ms
    of each round otherwise, is not how fast messages are worked on.
    """
    consumer = MemoryInbox(RedisInbox(url, consumer="c7"))
    handled(consumer, lambda _message, _lease: time.sleep(PAUSE))
    source = StandInSource()
    runner = Runner(source, consumer, RunnerSettings(threads=threads))
    threading.Thread(target=runner.run, args=(threading.Event(),), daemon=True).start()
    return source.deliver


def sides(engine: Engine, url: str) -> dict[str, Side]:
    """Everything that is compared, by name."""
    found = {
        "work alone": alone(engine),
        "C1 inbox": through(inbox(engine, "c1")),
        "C1 repeat": repeated(inbox(engine, "again")),
        "C2 Redis": through(remembered(engine, url)),
        "C3 lease": through(leased(engine)),
        "C4 ledger": through(business(engine)),
        "C5 miss": through(CachedInbox(inbox(engine, "miss"), url, epoch="miss")),
        "C5 hit": repeated(CachedInbox(inbox(engine, "c5"), url)),
        "C6 batch": batched(engine),
        "C7 one worker": pooled(url, 1),
        POOL: pooled(url, WORKERS),
        "SET NX by hand": by_hand(alone(engine), url),
    }
    if other := powertools(alone(engine), url):
        found["powertools"] = other
    return found


def measured(compared: dict[str, Side], number: int, rounds: int) -> list[dict[str, float]]:
    """Seconds a message of each side, round by round; the first round warms up and is not kept."""
    numbers, kept = count(), list[dict[str, float]]()
    for _ in range(rounds + 1):
        taken: dict[str, float] = {}
        for name, run in compared.items():
            fresh = messages(number * (4 if name == POOL else 1), numbers)
            began = time.perf_counter()
            run(fresh)
            taken[name] = (time.perf_counter() - began) / len(fresh)
        kept.append(taken)
    return kept[1:]


def ratio(kept: list[dict[str, float]], over: str, under: str) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(each[over] / each[under] for each in kept), 2)


def report(kept: list[dict[str, float]]) -> None:
    """The table and the figures."""
    print(f"{'':<16}{'µs a message':>14}{'of the work':>13}")
    for name in kept[0]:
        micro = 1e6 * statistics.median(each[name] for each in kept)
        print(f"{name:<16}{micro:>14.0f}{ratio(kept, name, 'work alone'):>13.2f}")
    figures = {
        "benchmark": "dedup",
        "c1_cost": ratio(kept, "C1 inbox", "work alone"),
        "c1_duplicate_vs_work": ratio(kept, "work alone", "C1 repeat"),
        "c5_hit_vs_work": ratio(kept, "work alone", "C5 hit"),
        "c6_vs_c1": ratio(kept, "C1 inbox", "C6 batch"),
        "c7_vs_one": ratio(kept, "C7 one worker", POOL),
    }
    print(json.dumps(figures))


@contextmanager
def servers() -> Iterator[tuple[Engine, str]]:
    """A durable PostgreSQL with the tables, and a Redis."""
    with Postgres(durable=True, max_wal_size="1GB") as postgres, Redis() as cache, fresh_database(postgres.url) as url:
        database = Database(url, pool_size=WORKERS + 2)
        migrate.upgrade(database)
        metadata.create_all(database.engine)
        with database.engine.begin() as connection:
            connection.execute(stock.insert(), [{"sku": sku, "quantity": 10**6} for sku in range(100)])
        yield database.engine, cache.url
        database.close()


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="Each dedup strategy against the same work without it")
    parser.add_argument("--messages", type=int, default=300, help="messages a round and side")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with servers() as (engine, url):
        report(measured(sides(engine, url), options.messages, options.rounds))


if __name__ == "__main__":
    main()
