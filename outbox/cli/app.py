"""The commands, and how wrong use is told: one line that names the setting or row, exit code 2, no traceback."""

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from outbox.cli.commands import Commands
from outbox.cli.quiet import Quiet
from outbox.errors import OutboxError

app = typer.Typer(
    name="outbox",
    cls=Commands,
    help="Transactional outbox for Apache RocketMQ: one business fact, one message, one effect.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rocketmq-outbox {version('rocketmq-outbox')}")
        raise typer.Exit


@app.callback()
def _options(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.", envvar="OUTBOX_LOG_LEVEL")] = "info",
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    if log_level not in _LEVELS:
        raise typer.BadParameter(f"{log_level!r}: debug, info, warning or error", param_hint="--log-level")
    handler = logging.StreamHandler()
    handler.addFilter(Quiet())
    words = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=_LEVELS[log_level], handlers=[handler], format=words)
    logging.getLogger("apscheduler").setLevel(max(_LEVELS[log_level], logging.WARNING))
    logging.getLogger("alembic").setLevel(max(_LEVELS[log_level], logging.WARNING))


def main() -> None:
    """Runs a command. Exit codes: 0 done; 1 a check found something, a row did not change; 2 wrong use."""
    try:
        app()
    except OutboxError as error:
        typer.echo(f"outbox: {error}", err=True)
        sys.exit(2)
