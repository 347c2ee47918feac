"""The schema's revisions: applied and printed through Alembic."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY
from outbox.errors import SchemaError
from outbox.resumed import resuming
from outbox.revision import VERSION_TABLE, folder
from outbox.shown import where
from outbox.store.database import Database
from outbox.store.patience import wait_for_ever
from outbox.store.supported import dotted, oldest_of, server_of

#: Seconds for which an upgrade waits for another one where the database wants a number.
_WAIT = 300


def upgrade(database: Database) -> None:
    """Brings the schema to this version; does nothing where it is there already.

    Several at once follow each other; one that died half-way is taken up where it stopped. ``SchemaError``: the
    database is at a revision of a newer version, or is itself of a release that is too old.
    """
    with database.engine.connect() as connection:
        connection.begin()
        with _alone(connection), resuming(connection):
            _refuse_old(connection)
            _keep_revision_as_text(connection)
            try:
                command.upgrade(_config(connection=connection), "head")
            except CommandError as error:
                at = where(database.engine.url)
                raise SchemaError(f"{at}: {error}: install the version of the toolkit that made this schema") from error
            # Before the lock is given back: whoever takes it next must see how far the schema has come.
            connection.commit()


def sql(dialect: str) -> str:
    """The DDL of all revisions for ``dialect`` (postgresql, mysql, sqlite), for those who apply it by hand."""
    written = io.StringIO()
    config = _config(dialect_name=dialect)
    config.output_buffer = written
    command.upgrade(config, "head", sql=True)
    return written.getvalue()


def _refuse_old(connection: Connection) -> None:
    """An old server may take the tables, but not the daemons' statements: better to say so before there are any."""
    name, release = server_of(connection)
    if release and release < (oldest := oldest_of(name)):
        at = where(connection.engine.url)
        raise SchemaError(f"{at} is {name} {dotted(release)}: the toolkit needs {name} {dotted(oldest)} or newer")


def _keep_revision_as_text(connection: Connection) -> None:
    """Alembic does not know its own revisions again where MySQL's default character set, binary, made them bytes."""
    inspector = sa.inspect(connection)
    if connection.dialect.name not in MYSQL_FAMILY or not inspector.has_table(VERSION_TABLE):
        return
    (column,) = inspector.get_columns(VERSION_TABLE)
    if isinstance(column["type"], sa.VARBINARY):
        text = f"{column['name']} VARCHAR(32) CHARACTER SET utf8mb4 NOT NULL"
        connection.exec_driver_sql(f"ALTER TABLE {VERSION_TABLE} MODIFY {text}")


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """One upgrade at a time, without the daemons' short time-outs; SQLite's BEGIN IMMEDIATE sees to it by itself."""
    dialect = connection.dialect.name
    if dialect != "sqlite":
        wait_for_ever(connection)
    if dialect == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(VERSION_TABLE))))
    if dialect not in MYSQL_FAMILY:
        yield
        return
    # MySQL commits with each DDL statement, so the lock is the session's; its name is the server's, so hashed.
    name = sa.func.sha2(sa.func.concat(VERSION_TABLE, sa.func.database()), 224)
    if not connection.scalar(sa.select(sa.func.get_lock(name, _WAIT))):
        raise SchemaError(f"another upgrade of this database has run for {_WAIT} s: try again once it is over")
    try:
        yield
    finally:
        connection.execute(sa.select(sa.func.release_lock(name)))


def _config(**attributes: object) -> Config:
    config = Config(attributes=attributes)
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
