"""The strategies that the contract suite runs on, each over each database."""

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import Engine

from outbox.store.database import Database
from tests.integration.strategies.rig import RIGS, StrategyRig, Surroundings


@pytest.fixture
def engine(migrated_url: str) -> Iterator[Engine]:
    """Where effects are counted."""
    database = Database(migrated_url, lock_timeout=20, statement_timeout=20)
    yield database.engine
    database.close()


@pytest.fixture(params=RIGS)
def strategy(request: pytest.FixtureRequest, engine: Engine) -> StrategyRig:
    """One dedup strategy after another."""
    return RIGS[request.param](Surroundings(engine, lambda: str(request.getfixturevalue("redis_server"))))
