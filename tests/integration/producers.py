"""A producing service: its own engine, its own table, and the four ways to hand a transaction to the library."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.store.database import parsed

KINDS = ("Session", "Connection", "AsyncSession", "AsyncConnection")
service = Outbox(origin="tests", plain_topics={"logs"})

orders = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    mysql_engine="InnoDB",
)


class Transaction:
    """One open transaction of a service, as the tests speak of it."""

    def __init__(self, held: Session | Connection) -> None:
        self.held = held

    def order(self, number: int) -> None:
        """Writes a business row."""
        self.held.execute(orders.insert().values(id=number))

    def add(self, **fields: Any) -> int:
        """Adds a message."""
        return service.add(self.held, **message(fields))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A nested transaction; rolled back on an exception."""
        with self.held.begin_nested():
            yield


class AsyncTransaction:
    """The same on an event loop."""

    def __init__(self, held: AsyncSession | AsyncConnection, loop: asyncio.Runner) -> None:
        self.held = held
        self._loop = loop

    def order(self, number: int) -> None:
        self._loop.run(_done(self.held.execute(orders.insert().values(id=number))))

    def add(self, **fields: Any) -> int:
        return int(self._loop.run(_done(service.add(self.held, **message(fields)))))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        nested = self._loop.run(_done(self.held.begin_nested()))
        try:
            yield
        except BaseException:
            self._loop.run(nested.rollback())
            raise
        self._loop.run(nested.commit())


class Service:
    """A service whose transactions are of one kind."""

    def __init__(self, url: str, kind: str, **engine: Any) -> None:
        self._kind = kind
        self._loop = asyncio.Runner()
        self._engine: Engine | AsyncEngine = (
            create_async_engine(asynchronous(url), **engine) if kind.startswith("Async") else application(url, **engine)
        )

    @contextmanager
    def transaction(self) -> Iterator[Transaction | AsyncTransaction]:
        """Commits at the end, rolls back on an exception."""
        if isinstance(self._engine, Engine):
            with _opened(self._kind, self._engine) as held, held.begin():
                yield Transaction(held)
            return
        opened = AsyncSession(self._engine) if self._kind == "AsyncSession" else self._engine.connect()
        entered: Any = self._loop.run(_done(opened.__aenter__()))
        try:
            yield AsyncTransaction(entered, self._loop)
            self._loop.run(entered.commit())
        finally:
            self._loop.run(entered.close())  # rolls back what is open

    def close(self) -> None:
        """Closes the service's connections."""
        if isinstance(self._engine, AsyncEngine):
            self._loop.run(self._engine.dispose())
        else:
            self._engine.dispose()
        self._loop.close()


def application(url: str, **engine: Any) -> Engine:
    """An engine with the defaults that an application gets, not those of the toolkit's own pool."""
    return sa.create_engine(parsed(url), **engine)


def asynchronous(url: str) -> URL:
    """The URL with an asynchronous driver."""
    address = parsed(url)
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg_async", "mysql": "mysql+aiomysql"}
    return address.set(drivername=drivers[address.get_backend_name()])


def message(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message, with defaults."""
    return {"topic": "payments", "key": "order-1:paid", "payload": {"order": 1}} | fields


@contextmanager
def _opened(kind: str, engine: Engine) -> Iterator[Any]:
    with Session(engine) if kind == "Session" else engine.connect() as held:
        yield held


async def _done(awaitable: Any) -> Any:
    """A coroutine, which is what a runner runs, of anything that can be awaited."""
    return await awaitable
