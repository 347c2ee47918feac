"""One peer's relay over a no-op (or slow) publisher, for ``benchmarks.peers``: run by a Python that has it installed.

    python benchmarks/clients/peer.py NAME URL ROWS SECONDS [--tuned]

``URL``: an empty PostgreSQL database. The rows are there before the relay starts; the clock runs from there to the last
message that is published, so writing down what became of the last ones is not counted. Prints one JSON object. Knows
nothing of this project.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

BODY = os.urandom(256).hex()


class Publisher:
    """Counts messages, each of which takes so long; ``done`` once all have come."""

    def __init__(self, rows: int, seconds: float) -> None:
        self.left, self.rows, self.seconds = rows, rows, seconds
        self.began = self.last = 0.0
        self.done = asyncio.Event()

    async def take(self) -> None:
        """One message."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self.left -= 1
        if not self.left:
            self.last = time.monotonic()
            self.done.set()

    def starts(self) -> None:
        """The rows are there, the relay is not."""
        self.began = time.monotonic()

    def rate(self) -> float:
        """Messages a second."""
        return self.rows / (self.last - self.began)


async def txoutbox(url: str, publisher: Publisher, *, tuned: bool) -> None:
    """Its default round is 50 rows, 10 at once."""
    import asyncpg
    from txoutbox import Relay, RelayConfig
    from txoutbox.adapters.postgres import PostgresStorage

    pool = await asyncpg.create_pool(url)
    storage = PostgresStorage(pool)
    await storage.create_schema()
    async with pool.acquire() as connection, connection.transaction():
        for _ in range(publisher.rows):
            await storage.insert(connection, "bench", BODY)

    async def publish(_message: object) -> None:
        await publisher.take()

    config = RelayConfig(batch_size=1000, concurrency=200) if tuned else RelayConfig()
    publisher.starts()
    async with Relay(storage, publish, config=config):
        await publisher.done.wait()
    await pool.close()


async def faststream_outbox(url: str, publisher: Publisher, *, tuned: bool) -> None:
    """By default one worker, ten rows a fetch, a DELETE for each row."""
    from faststream_outbox import OutboxBroker, make_outbox_table
    from sqlalchemy import MetaData
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="outbox")
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=40)
    broker = OutboxBroker(engine, outbox_table=table)
    settings = {"max_workers": 32, "fetch_batch_size": 1000, "terminal_flush_batch_size": 100} if tuned else {}

    async def publish(_body: dict[str, Any]) -> None:
        await publisher.take()

    broker.subscriber("bench", **settings)(publish)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with async_sessionmaker(engine)() as session, session.begin():
        for _ in range(publisher.rows):
            await broker.publish({"body": BODY}, queue="bench", session=session)
    publisher.starts()
    await broker.start()
    await publisher.done.wait()
    await broker.stop()
    await engine.dispose()


async def omni_box(url: str, publisher: Publisher, *, tuned: bool) -> None:
    """By default 100 rows a batch, one after another, in one transaction."""
    from omni_box import OmniBoxDomainService, OutboxPublisher
    from omni_box.core.protocols import EventPublisher
    from omni_box.infra.storage.postgres import OutboxEventDBBase, PostgresOutboxRepository
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
    from sqlalchemy.orm import DeclarativeBase

    class Base(DeclarativeBase):
        pass

    class Event(OutboxEventDBBase, Base):  # type: ignore[misc]  # untyped where it is not installed
        pass

    class Broker(EventPublisher):  # type: ignore[misc]
        async def publish(self, event: object, repo: object) -> None:  # noqa: ARG002 -- the port's
            await publisher.take()

    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    sessions, domain = async_sessionmaker(engine), OmniBoxDomainService()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions() as session, session.begin():
        repository = PostgresOutboxRepository(session, model_class=Event)
        for number in range(publisher.rows):
            names = {"aggregate_type": "order", "aggregate_id": _uuid(number), "event_type": "paid", "topic": "bench"}
            await repository.create(
                domain.create_outbox_event(**names, partition_key=str(number), payload={"body": BODY})
            )
    publisher.starts()
    while publisher.left:
        async with sessions() as session, session.begin():
            repository = PostgresOutboxRepository(session, model_class=Event)
            await OutboxPublisher(repository, Broker()).publish_batch("bench", 1000 if tuned else 100)
    await engine.dispose()


def _uuid(number: int) -> Any:
    from uuid import UUID

    return UUID(int=number)


PEERS: dict[str, Callable[..., Awaitable[None]]] = {
    "txoutbox": txoutbox,
    "faststream-outbox": faststream_outbox,
    "omni-box": omni_box,
}


async def main() -> None:
    """Runs the one that is named."""
    name, url, rows, seconds, *rest = sys.argv[1:]
    publisher = Publisher(int(rows), float(seconds))
    await PEERS[name](url, publisher, tuned="--tuned" in rest)
    print(json.dumps({"per_s": publisher.rate()}))


if __name__ == "__main__":
    asyncio.run(main())
