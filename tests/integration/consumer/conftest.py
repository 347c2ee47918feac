"""The shop's tables beside the toolkit's."""

import pytest
from sqlalchemy.engine import Engine

from outbox.store.database import Database
from tests.integration.consumer.shop import metadata


@pytest.fixture
def engine(database: Database) -> Engine:
    """For looking into the database from outside the inbox."""
    metadata.create_all(database.engine)
    return database.engine
