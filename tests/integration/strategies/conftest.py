"""The strategies that the contract suite runs on, each over each database."""

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from sqlalchemy.engine import Engine

from outbox.store.database import Database
from tests.integration.strategies.rig import (
    AsyncRig,
    RedisRig,
    StrategyRig,
    batch_rig,
    business_rig,
    cached_rig,
    inbox_rig,
    leased_rig,
    memory_rig,
)

#: By the name that the test's id shows. A strategy with a server of its own asks the request for its fixture.
STRATEGIES: Final[dict[str, Callable[[Engine, pytest.FixtureRequest], StrategyRig]]] = {
    "inbox": lambda engine, _: inbox_rig(engine, row_lock=False),
    "asynchronous": lambda engine, _: AsyncRig(engine),
    "row_lock": lambda engine, _: inbox_rig(engine, row_lock=True),
    "redis": lambda engine, request: RedisRig(engine, request.getfixturevalue("redis_server")),
    "cached": lambda engine, request: cached_rig(engine, request.getfixturevalue("redis_server")),
    "cached_leased": lambda engine, request: cached_rig(engine, request.getfixturevalue("redis_server"), leased=True),
    "memory": lambda engine, _: memory_rig(engine),
    "batch": lambda engine, _: batch_rig(engine),
    "leased": lambda engine, _: leased_rig(engine),
    "business": lambda engine, _: business_rig(engine),
}


@pytest.fixture
def engine(migrated_url: str) -> Iterator[Engine]:
    """Where effects are counted."""
    database = Database(migrated_url)
    yield database.engine
    database.close()


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest, engine: Engine) -> StrategyRig:
    """One dedup strategy after another."""
    return STRATEGIES[request.param](engine, request)
