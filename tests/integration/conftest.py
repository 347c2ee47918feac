"""A database with the schema applied, on each back end."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from outbox import migrate
from outbox.store.database import Database
from tests.conftest import BACKENDS
from tests.integration.templates import mariadb_copy, migrated, postgresql_copy, sqlite_copy
from tests.services.databases import fresh_database

#: Makes a database at head for one test, in the test's own folder where it needs one.
Copies = Callable[[Path], AbstractContextManager[str]]


@pytest.fixture(scope="session")
def sqlite_copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """Copies of a migrated file."""
    template = tmp_path_factory.mktemp("template") / "outbox.db"
    migrated(f"sqlite:///{template}")
    return lambda folder: sqlite_copy(template, folder)


@pytest.fixture(scope="session")
def postgresql_copies(postgres: str) -> Iterator[Copies]:
    """Databases made from a migrated template."""
    with fresh_database(postgres) as url:
        template = migrated(url)
        yield lambda _: postgresql_copy(template, postgres)


@pytest.fixture(scope="session")
def mariadb_copies(mariadb: str) -> Copies:
    """Databases made by one script."""
    script = migrate.sql("mysql")
    return lambda _: mariadb_copy(script, mariadb)


@pytest.fixture(params=BACKENDS)
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """SQLAlchemy URL of a fresh database at head, on each back end in turn."""
    copies: Copies = request.getfixturevalue(f"{request.param}_copies")
    with copies(tmp_path) as url:
        yield url


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """A fresh database at head, as the daemons use it, and patient: a busy machine may stand still for a while."""
    database = Database(migrated_url, lock_timeout=60, statement_timeout=60)
    yield database
    database.close()
