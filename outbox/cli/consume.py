"""``outbox consume``: a consumer that runs until SIGTERM."""

import threading
from functools import partial
from typing import Annotated

import typer

from outbox import settings
from outbox.cli.options import BrokerUrl, Origin
from outbox.cli.stopping import stopped_by_signals
from outbox.cli.target import Target, imported, target_reachable
from outbox.consumer import RunnerSettings, run
from outbox.consumer.schedule import ORDERLY_DELAYS, RETRY_DELAYS
from outbox.settings import Settings
from outbox.wiring import open_source


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("consume")(consume_command)


def consume_command(
    target: Target,
    broker_url: BrokerUrl = None,
    origin: Origin = None,
    group: Annotated[str | None, typer.Option(help="Consumer group; the inbox's own name by default.")] = None,
    threads: Annotated[int | None, typer.Option(help="Handlers that run at once.")] = None,
    orderly: Annotated[
        bool | None, typer.Option("--orderly/--no-orderly", help="FIFO group: one message of a queue at a time.")
    ] = None,
) -> None:
    """Receives messages and hands them to the handlers of an Inbox until SIGTERM."""
    loaded = settings.load(broker_url=broker_url, origin=origin, threads=threads, orderly=orderly)
    inbox = imported(target)
    stop = threading.Event()
    with stopped_by_signals(stop.set), target_reachable(target):
        source = partial(open_source, loaded)
        run(inbox, source, stop, group=group, settings=_runner_settings(loaded))


def _runner_settings(loaded: Settings) -> RunnerSettings:
    return RunnerSettings(
        threads=loaded.threads,
        invisible=loaded.invisible,
        retry_delays=ORDERLY_DELAYS if loaded.orderly else RETRY_DELAYS,
        after_retries=loaded.after_retries,
    )
