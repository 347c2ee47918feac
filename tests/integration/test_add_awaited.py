"""An add over an async session that nobody awaits."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from outbox import NotAwaited, Outbox
from outbox.schema import outbox as rows
from tests.integration.conftest import Copies

Held = AsyncSession | AsyncConnection


class Service:
    """A service on an event loop of its own."""

    def __init__(self, url: str, kind: type[Held]) -> None:
        self._engine = create_async_engine(url)
        self._kind = kind
        self._outbox = Outbox("tests")

    def opened(self) -> Any:
        return AsyncSession(self._engine) if self._kind is AsyncSession else self._engine.connect()

    def add(self, held: Held, key: str) -> Any:
        return self._outbox.add(held, topic="t", key=key, payload=1)

    async def keys(self) -> list[str]:
        async with self._engine.connect() as connection:
            return list((await connection.execute(sa.select(rows.c.key).order_by(rows.c.id))).scalars())

    async def close(self) -> None:
        await self._engine.dispose()


@pytest.fixture(params=[AsyncSession, AsyncConnection], ids=["AsyncSession", "AsyncConnection"])
def service(request: pytest.FixtureRequest, sqlite_copies: Copies, tmp_path: Path) -> Iterator[Service]:
    with sqlite_copies(tmp_path) as url:
        yield Service(url.replace("sqlite:", "sqlite+aiosqlite:"), request.param)


def test_a_commit_without_the_await_is_refused_and_names_the_message(service: Service) -> None:
    async def run() -> list[str]:
        async with service.opened() as held:
            service.add(held, "forgotten")
            await service.add(held, "awaited")
            with pytest.raises(NotAwaited, match=r"topic 't', key 'forgotten': .* await outbox\.add"):
                await held.commit()
            # A second try does not get through either (a connection wants a rollback first).
            with pytest.raises((NotAwaited, PendingRollbackError)):
                await held.commit()
        kept = await service.keys()
        await service.close()
        return kept

    assert asyncio.run(run()) == []


def test_a_block_that_commits_at_its_end_rolls_back(service: Service) -> None:
    async def forgetful() -> None:
        async with service.opened() as held, held.begin():
            await service.add(held, "awaited")
            service.add(held, "forgotten")

    async def run() -> list[str]:
        with pytest.raises(NotAwaited):
            await forgetful()
        kept = await service.keys()
        await service.close()
        return kept

    assert asyncio.run(run()) == []


def test_a_rollback_forgets_it_and_what_is_awaited_later_is_written(service: Service) -> None:
    async def run() -> list[str]:
        async with service.opened() as held:
            await service.add(held, "first")
            service.add(held, "forgotten")
            await held.rollback()
            later = service.add(held, "second")
            await later
            await held.commit()
        kept = await service.keys()
        await service.close()
        return kept

    assert asyncio.run(run()) == ["second"]
