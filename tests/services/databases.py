"""Fresh, empty databases on a server that runs."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from outbox import migrate
from outbox.store.database import Database


@contextmanager
def fresh_database(server_url: str, *, template: str | None = None) -> Iterator[str]:
    """SQLAlchemy URL of a new database, dropped afterwards with all its connections.

    ``server_url`` names a database of a user that may create others; ``template`` (PostgreSQL only) is one to copy.
    """
    server = make_url(server_url)
    name = f"outbox_{uuid.uuid4().hex[:16]}"
    _execute(server, _create(server, name, template))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        _execute(server, _drop(server, name))


@contextmanager
def migrated(server_url: str, *, statement_timeout: float = 120.0) -> Iterator[Database]:
    """A fresh database at head; ``statement_timeout`` is in seconds."""
    with fresh_database(server_url) as url:
        database = Database(url, statement_timeout=statement_timeout)
        migrate.upgrade(database)
        yield database
        database.close()


def _create(server: URL, name: str, template: str | None) -> str:
    if server.get_backend_name() != "postgresql":
        return f"CREATE DATABASE {name} CHARACTER SET utf8mb4"
    return f"CREATE DATABASE {name} TEMPLATE {template or 'template0'}"


def _drop(server: URL, name: str) -> str:
    """PostgreSQL refuses to drop a database in use unless forced; MariaDB does not mind."""
    return f"DROP DATABASE IF EXISTS {name}" + (" WITH (FORCE)" if server.get_backend_name() == "postgresql" else "")


def _execute(server: URL, statement: str) -> None:
    engine = create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
