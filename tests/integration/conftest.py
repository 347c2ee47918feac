"""A database with the schema applied, on each back end."""

from collections.abc import Iterator

import pytest

from outbox import migrate
from outbox.store.database import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh database at head, as the daemons use it."""
    database = Database(database_url, statement_timeout=20)
    migrate.upgrade(database)
    yield database
    database.close()
