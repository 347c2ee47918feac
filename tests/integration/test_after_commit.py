"""Who is called once rows are committed."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.store.database import Database
from tests.integration.conftest import Copies


class Bell:
    def __init__(self) -> None:
        self.rang = 0

    def __call__(self) -> None:
        self.rang += 1


def add(outbox: Outbox, session: Session, key: str) -> None:
    outbox.add(session, topic="t", key=key, payload=1)


def test_the_outermost_commit_of_rows_rings_once(database: Database) -> None:
    bell = Bell()
    outbox = Outbox("tests", wake=bell)
    with Session(database.engine) as session:
        # When rows are added, one of them in a savepoint / Then nobody is called
        add(outbox, session, "1")
        with session.begin_nested():
            add(outbox, session, "2")
        assert bell.rang == 0
        # When the transaction is committed / Then once, and a commit without rows changes nothing
        session.commit()
        assert bell.rang == 1
        session.connection()
        session.commit()
        assert bell.rang == 1
        # And the session's next transaction with rows calls again
        add(outbox, session, "3")
        session.commit()
        assert bell.rang == 2


def test_rows_that_are_rolled_back_ring_nobody(database: Database) -> None:
    bell = Bell()
    with Session(database.engine) as session:
        add(Outbox("tests", wake=bell), session, "1")
        session.rollback()
    assert bell.rang == 0


def test_a_commit_that_was_made_does_not_fail_for_the_call(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("no relay")

    with Session(database.engine) as session:
        add(Outbox("tests", wake=broken), session, "1")
        session.commit()
    assert "no relay" in caplog.text


async def _added(url: str, bell: Bell) -> None:
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        await Outbox("tests", wake=bell).add(session, topic="t", key="1", payload=1)
        await session.commit()
    await engine.dispose()


def test_asynchronous_sessions_ring_as_well(sqlite_copies: Copies, tmp_path: Path) -> None:
    bell = Bell()
    with sqlite_copies(tmp_path) as url:
        asyncio.run(_added(url.replace("sqlite:", "sqlite+aiosqlite:"), bell))
    assert bell.rang == 1
