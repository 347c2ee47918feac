"""Empty databases for the revisions, two at a time where they are compared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.store.database import Database
from tests.conftest import SERVERS
from tests.services.databases import fresh_database

#: Seconds for a statement, and on SQLite for another's transaction; generous, since the machine may be shared.
PATIENCE = 120.0


@pytest.fixture
def empty(database_url: str) -> Iterator[Database]:
    """An empty database, on each back end in turn."""
    database = Database(database_url, statement_timeout=PATIENCE)
    yield database
    database.close()


@pytest.fixture
def declared(request: pytest.FixtureRequest, empty: Database, tmp_path: Path) -> Iterator[Database]:
    """A second empty database on the same back end."""
    server = SERVERS.get(request.node.callspec.params["database_url"])
    if server is None:
        database = Database(f"sqlite:///{tmp_path / 'declared.db'}", statement_timeout=PATIENCE)
        yield database
        database.close()
        return
    with fresh_database(request.getfixturevalue(server)) as url:
        database = Database(url, statement_timeout=PATIENCE)
        yield database
        database.close()
