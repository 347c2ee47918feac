"""``outbox relay``, ``outbox checkback``: the processes that ship and answer until SIGTERM."""

from typing import Annotated, Final

import typer

from outbox import settings
from outbox.cli import garbage
from outbox.cli.options import BrokerUrl, DatabaseUrl, Named, Origin
from outbox.cli.serving import Process, Serve, ServedDatabase
from outbox.cli.stopping import stopped_by_signals
from outbox.settings import Settings

#: Seconds for an orderly stop of relay or check-back: less than the 30 after which Kubernetes kills.
_DRAIN: Final = 25.0


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (relay_command, checkback_command):
        app.command(command.__name__.removesuffix("_command"))(command)


def relay_command(
    database_url: DatabaseUrl = None,
    broker_url: BrokerUrl = None,
    origin: Origin = None,
    database: Named = None,
    checks: Annotated[bool, typer.Option("--checkback/--no-checkback", help="Answer the broker's checks too.")] = True,
) -> None:
    """Ships rows to the broker until SIGTERM; a second one stops at once. Serves every database that is listed."""
    loaded = settings.load(database_url=database_url, broker_url=broker_url, origin=origin, database=database)
    _serve(loaded, lambda database: database.ship(checks=checks))


def checkback_command(
    database_url: DatabaseUrl = None, broker_url: BrokerUrl = None, origin: Origin = None, database: Named = None
) -> None:
    """Answers the broker's transaction checks from the database until SIGTERM."""
    loaded = settings.load(database_url=database_url, broker_url=broker_url, origin=origin, database=database)
    _serve(loaded, ServedDatabase.answer)


def _serve(loaded: Settings, serve: Serve) -> None:
    process = Process(loaded, serve)
    garbage.seldom()
    with stopped_by_signals(process.stop, _DRAIN):
        process.run()
