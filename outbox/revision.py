"""Which revision of the schema this version needs, and which one a database is at.

Whoever only asks does without Alembic, which takes a fifth of a second to load: a daemon, a consumer, most commands.
"""

from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from outbox.columns import ExactText
from outbox.errors import SchemaError
from outbox.shown import where
from outbox.store.database import Database, missing_file

#: A name of our own, so that the toolkit lives beside the application's revisions in one database.
VERSION_TABLE = "outbox_schema_version"
#: How a database is chosen; the last is for those that ``outbox.toml`` lists.
_CHOICE = "OUTBOX_DATABASE_URL, --database-url or --database"
#: Alembic's table, of one row. Its text is bytes where the default character set of a MySQL database is binary.
_versions = sa.table(VERSION_TABLE, sa.column("version_num", ExactText(32)))


def current(connection: Connection) -> str | None:
    """The revision that the database is at; None: the schema is not there."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(sa.select(_versions.c.version_num))


def head() -> str:
    """The revision that this version of the toolkit needs."""
    return max(_revisions())


def knows(revision: str) -> bool:
    """Whether the revision is one of this version's or an earlier one's."""
    return revision in _revisions()


def check(database: Database) -> None:
    """Raises ``SchemaError`` unless the schema is at this version's revision. Makes no file of SQLite."""
    check_at(database.engine)


def check_at(engine: Engine) -> None:
    """The same, over an engine of anybody's."""
    if path := missing_file(engine.url):
        raise SchemaError(f"{path}: there is no such file: correct the URL, or run `outbox db upgrade`, which makes it")
    with engine.connect() as connection:
        _check_on(connection)


def _check_on(connection: Connection) -> None:
    at = current(connection)
    if at is None:
        raise SchemaError(
            f"the outbox tables are missing from {where(connection.engine.url)}: run `outbox db upgrade` with it as "
            f"{_CHOICE}"
        )
    if at == head():
        return
    if not knows(at):
        raise SchemaError(
            f"{where(connection.engine.url)} is at revision {at}, which this version of the toolkit does not know (it "
            f"needs {head()}): install the version that made it, or a newer one"
        )
    raise SchemaError(
        f"{where(connection.engine.url)} is at revision {at}, this version of the toolkit needs {head()}: run "
        f"`outbox db upgrade` with it as {_CHOICE}"
    )


@cache
def _revisions() -> frozenset[str]:
    """Each file's name begins with its revision, and they follow each other."""
    if found := frozenset(file.name.partition("_")[0] for file in (folder() / "versions").glob("[0-9]*.py")):
        return found
    raise SchemaError(f"no revisions in {folder()}: the installation is incomplete, install the package again")


def folder() -> Path:
    """Where the revisions lie: beside this package in a checkout, inside it in an installed wheel."""
    inside = Path(__file__).parent / "migrations"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "migrations"
