"""What a dedup strategy gives the contract suite.

To plug a strategy in: write a function that makes its ``StrategyRig``, and add it to ``RIGS``. Each strategy meets each
database: the effects are counted there, whatever store tells repeats.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outbox.consumer import (
    BatchInbox,
    BusinessConsumer,
    FencedLease,
    Inbox,
    LeasedInbox,
    MemoryInbox,
    Message,
    Processed,
    ledger_entry,
)
from outbox.consumer.cached_inbox import CachedInbox
from outbox.consumer.leases import Lease
from outbox.consumer.redis_inbox import RedisInbox
from outbox.consumer.remembering import Executing
from outbox.identity import fresh_token
from tests.integration.consumer.shop import effects, keys_done, metadata, record

#: Runs inside each handler, after its effect.
Step = Callable[[Message], object]
#: What a rig's ledger calls an effect by.
ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("consumer", effects.c.consumer.type, nullable=False),
    sa.Column("key", sa.LargeBinary(400).with_variant(sa.VARBINARY(400), "mysql", "mariadb"), nullable=False),
    sa.Column("body", sa.LargeBinary(400).with_variant(sa.VARBINARY(400), "mysql", "mariadb"), nullable=False),
    sa.UniqueConstraint("consumer", "key", name="uq_ledger"),
    mysql_engine="InnoDB",
)


def nothing(_message: Message) -> None:
    """A handler's step that does nothing."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a rig stands on. Two that are made over the same ones are two processes of one consumer."""

    engine: Engine
    #: URL of a Redis, asked for by those who need one.
    redis: Callable[[], str]
    #: Keeps the keys apart of tests that share the Redis.
    scope: str = field(default_factory=fresh_token)
    #: Seconds.
    lease: float = 60.0


class StrategyRig(Protocol):
    """One strategy over one store, and effects that can be counted. What it opens, it closes at the end of the test."""

    #: The effect and the memory of it become durable together, so that a failed handler leaves no effect behind.
    transactional: bool
    #: The same key with another payload is parked.
    compares_payload: bool

    def consumer(self, step: Step = nothing, name: str = "stock") -> Executing:
        """A consumer whose handler for the topic payments records one effect for the message's key, then steps."""
        ...

    def away(self) -> Executing:
        """The same over a store that cannot be reached."""
        ...

    def effects(self, name: str = "stock") -> list[str]:
        """The keys of all effects of a consumer, repeats included, sorted."""
        ...


class SqlRig:
    """A strategy whose handlers write in its transaction."""

    transactional = True
    compares_payload = True

    def __init__(
        self, engine: Engine, make: Callable[[Engine, str], Executing], handler: Callable[[Step, str], object]
    ) -> None:
        metadata.create_all(engine)
        self._engine = engine
        self._make = make
        self._handler = handler

    def consumer(self, step: Step = nothing, name: str = "stock") -> Executing:
        """Over the test's database."""
        return self._registered(self._make(self._engine, name), step, name)

    def away(self) -> Executing:
        """Over a folder that is not there, or a port that nobody listens on."""
        dialect = self._engine.dialect.name
        url = "sqlite:////nowhere/at/all.db" if dialect == "sqlite" else self._engine.url.set(port=1)
        return self._registered(self._make(sa.create_engine(url), "stock"), nothing, "stock")

    def effects(self, name: str = "stock") -> list[str]:
        """Read past the strategy."""
        return sorted(keys_done(self._engine, name))

    def _registered(self, consumer: Executing, step: Step, name: str) -> Executing:
        consumer.handler(topic="payments")(self._handler(step, name))  # type: ignore[type-var]
        return consumer


def recording(step: Step, name: str) -> Callable[[Message, Session], object]:
    """The effect, then the step."""

    def on_paid(message: Message, session: Session) -> None:
        record(message, session, name)
        step(message)

    return on_paid


def entering(step: Step, name: str) -> Callable[[Message, Session], object]:
    """The effect behind a ledger row that tells repeats."""

    def on_paid(message: Message, session: Session) -> object:
        entry = {"consumer": name, "key": message.key.encode(), "body": message.body}
        said = ledger_entry(session, ledger, entry, unique=("consumer", "key"))
        if isinstance(said, Processed):
            record(message, session, name)
            step(message)
        return said

    return on_paid


def working(step: Step, name: str) -> Callable[[Message, FencedLease], object]:
    """The effect in the lease's own transaction."""

    def on_paid(message: Message, lease: FencedLease) -> None:
        with lease.transaction() as session:
            record(message, session, name)
            step(message)

    return on_paid


def inbox_rig(on: Surroundings, *, row_lock: bool) -> SqlRig:
    """C1, in either form."""

    def make(over: Engine, name: str) -> Executing:
        return Inbox(over, consumer=name, row_lock=row_lock, lock_timeout=20)

    return SqlRig(on.engine, make, recording)


def leased_rig(on: Surroundings) -> SqlRig:
    """C3."""
    return SqlRig(on.engine, lambda over, name: LeasedInbox(over, consumer=name, lease=on.lease), working)


_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+aiomysql"}


def asynchronous(engine: Engine) -> AsyncEngine:
    """The same database for coroutines: each consumer has an engine of its own, since it has a loop of its own."""
    url = engine.url.set(drivername=_DRIVERS[engine.dialect.name.replace("mariadb", "mysql")])
    return create_async_engine(url, poolclass=NullPool)


class AsyncRig(SqlRig):
    """C1 with coroutines as handlers, over an ``AsyncEngine``."""

    def __init__(self, on: Surroundings) -> None:
        super().__init__(on.engine, lambda over, name: Inbox(asynchronous(over), consumer=name), self._awaited)

    @staticmethod
    def _awaited(step: Step, name: str) -> Callable[[Message, AsyncSession], Awaitable[object]]:
        async def on_paid(message: Message, session: AsyncSession) -> None:
            await session.execute(effects.insert().values(consumer=name, key=message.key))
            await asyncio.sleep(0)
            step(message)

        return on_paid


class RedisRig(SqlRig):
    """C2: repeats are told by Redis, the effects are in the database."""

    transactional = False

    def __init__(self, on: Surroundings) -> None:
        self._url = on.redis()

        def make(_: Engine, name: str) -> Executing:
            return RedisInbox(self._url, consumer=on.scope + name, lease=on.lease)

        super().__init__(on.engine, make, self._outside)

    def away(self) -> Executing:
        """Over a port that nobody listens on."""
        self._url = "redis://127.0.0.1:1/0"
        return self.consumer()

    def _outside(self, step: Step, name: str) -> Callable[[Message, Lease], object]:
        def on_paid(message: Message, lease: Lease) -> None:
            lease.check()
            with Session(self._engine) as session, session.begin():
                record(message, session, name)
            step(message)

        return on_paid


def cached_rig(on: Surroundings, *, leased: bool = False) -> SqlRig:
    """C5 over C1 or C3."""
    url = on.redis()

    def make(over: Engine, name: str) -> Executing:
        inner: Executing = Inbox(over, consumer=name, lock_timeout=20)
        if leased:
            inner = LeasedInbox(over, consumer=name, lease=on.lease, lock_timeout=20)
        return CachedInbox(inner, url, epoch=on.scope)

    return SqlRig(on.engine, make, working if leased else recording)


def memory_rig(on: Surroundings) -> SqlRig:
    """C7 over C1."""
    return SqlRig(on.engine, lambda over, name: MemoryInbox(Inbox(over, consumer=name, lock_timeout=20)), recording)


def batch_rig(on: Surroundings) -> SqlRig:
    """C6, one message at a time."""

    def handler(step: Step, name: str) -> Callable[[Sequence[Message], Session], object]:
        def on_paid(messages: Sequence[Message], session: Session) -> None:
            for message in messages:
                record(message, session, name)
                step(message)

        return on_paid

    return SqlRig(on.engine, lambda over, name: BatchInbox(over, consumer=name, lock_timeout=20), handler)


def business_rig(on: Surroundings) -> SqlRig:
    """C4."""
    return SqlRig(on.engine, lambda over, name: BusinessConsumer(over, consumer=name), entering)


#: By the name that a test's id shows.
RIGS: Final[dict[str, Callable[[Surroundings], StrategyRig]]] = {
    "inbox": lambda on: inbox_rig(on, row_lock=False),
    "row_lock": lambda on: inbox_rig(on, row_lock=True),
    "asynchronous": AsyncRig,
    "redis": RedisRig,
    "leased": leased_rig,
    "business": business_rig,
    "cached": cached_rig,
    "cached_leased": lambda on: cached_rig(on, leased=True),
    "batch": batch_rig,
    "memory": memory_rig,
}
