"""Migrated databases, made quickly: one migration per session and back end, then copies of its result."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT

from outbox import migrate
from outbox.store.database import Database
from tests.services.databases import fresh_database


def migrated(url: str) -> str:
    """The database at ``url``, brought to head."""
    database = Database(url)
    migrate.upgrade(database)
    database.close()
    return url


@contextmanager
def sqlite_copy(template: Path, folder: Path) -> Iterator[str]:
    """URL of a copy of the migrated file."""
    yield f"sqlite:///{shutil.copy(template, folder / 'outbox.db')}"


@contextmanager
def postgresql_copy(template: str, server: str) -> Iterator[str]:
    """URL of a database made from the migrated one, which nobody may be connected to."""
    with fresh_database(server, template=sa.make_url(template).database) as url:
        yield url


@contextmanager
def mariadb_copy(script: str, server: str) -> Iterator[str]:
    """URL of a database in which the migrated one's script has run, in one round trip."""
    with fresh_database(server) as url:
        run_script(url, script)
        yield url


def run_script(url: str, script: str) -> None:
    """Runs many statements at once."""
    address = sa.make_url(url)
    connection = pymysql.connect(
        host=address.host,
        port=address.port or 3306,
        user=address.username or "root",
        password=address.password or "",
        database=address.database,
        client_flag=CLIENT.MULTI_STATEMENTS,
        autocommit=True,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(script)
        while cursor.nextset():
            pass
