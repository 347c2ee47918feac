"""``outbox db …``: the schema's revisions, applied, checked and printed."""

from enum import StrEnum
from typing import Annotated

import typer

from outbox import migrate, revision, settings
from outbox.cli.options import DatabaseUrl, Named, opened
from outbox.columns import MYSQL_FAMILY
from outbox.errors import SchemaError, SettingsError
from outbox.settings import Settings
from outbox.store.identity import Identity
from outbox.wiring import database_address

app = typer.Typer(help="The outbox tables: bring them up to date, check them, print their DDL.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    """Adds the commands."""
    commands.add_typer(app, name="db")


class Dialect(StrEnum):
    """The dialects that ``db sql`` writes; MariaDB reads what MySQL does."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    SQLITE = "sqlite"


@app.command()
def upgrade(database_url: DatabaseUrl = None, named: Named = None) -> None:
    """Brings the schema to this version; does nothing where it is there already."""
    with opened(database_url, named, at_head=False) as database:
        with database.engine.connect() as connection:
            before = revision.current(connection)
        migrate.upgrade(database)
    now = revision.head()
    typer.echo(f"schema at revision {now}" + ("" if before == now else f" (before: {before or 'none'})"))


@app.command()
def check(database_url: DatabaseUrl = None, named: Named = None) -> None:
    """Says whether the schema fits this version; exit code 1 if it does not."""
    with opened(database_url, named, at_head=False) as database:
        try:
            revision.check(database)
        except SchemaError as found:
            typer.echo(f"outbox: {found}", err=True)
            raise typer.Exit(1) from found
    typer.echo(f"schema at revision {revision.head()}, as this version needs it")


@app.command()
def adopt(
    yes: Annotated[bool, typer.Option("--yes", help="Yes, this database is a copy.")] = False,
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Gives a copy of a database an identity of its own, so that it does not answer for the original's halves.

    Stop the copy's relays first. Its open rows are the original's: cancel them here, or both will publish them.
    """
    if not yes:
        raise SettingsError(
            "--yes: needed, since halves under way of this database become foreign to it: is it a copy?"
        )
    with opened(database_url, named) as database:
        typer.echo(f"this database is {Identity(database).adopt()} from now on; restart its relays and check-backs")


@app.command()
def sql(
    dialect: Annotated[Dialect | None, typer.Option(help="By default that of the database URL.")] = None,
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Prints the DDL of all revisions, for those who apply it by hand. Needs no database."""
    typer.echo(migrate.sql(dialect or _dialect_of(settings.load(database_url=database_url, database=named))), nl=False)


def _dialect_of(loaded: Settings) -> Dialect:
    backend = database_address(loaded).get_backend_name()
    return Dialect.MYSQL if backend in MYSQL_FAMILY else Dialect(backend)
