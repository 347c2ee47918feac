"""``outbox health``: how the daemon of this host is, for probes that run a command."""

from http import HTTPStatus
from typing import Annotated

import typer

from outbox import settings
from outbox.errors import SettingsError
from outbox.health.asking import asked


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("health")(health_command)


def health_command(
    port: Annotated[int | None, typer.Option(help="Overrides OUTBOX_HEALTH_PORT.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Ask whether it is alive, not whether it is ready.")] = False,
) -> None:
    """Asks the daemon of this host how it is; exit code 0 or 1, for probes that run a command."""
    loaded = settings.load(health_port=port)
    if loaded.health_port is None:
        raise SettingsError("OUTBOX_HEALTH_PORT: is not set: start the daemon with it, and name it here too (--port)")
    status, told = asked(loaded.health_host, loaded.health_port, "/livez" if live else "/readyz")
    typer.echo(told.rstrip())
    if status != HTTPStatus.OK:
        raise typer.Exit(1)
