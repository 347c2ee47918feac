"""``outbox relay``, ``outbox checkback``, ``outbox consume``: the processes that run until SIGTERM."""

import atexit
import gc
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from queue import SimpleQueue
from typing import Annotated, Final

import typer

from outbox import settings
from outbox.cli.options import BrokerUrl, DatabaseUrl, Named, Origin
from outbox.cli.serving import Process, Serve, ServedDatabase
from outbox.cli.target import Target, imported, target_reachable
from outbox.consumer import RunnerSettings, run
from outbox.consumer.schedule import ORDERLY_DELAYS, RETRY_DELAYS
from outbox.errors import SettingsError
from outbox.health.asking import asked
from outbox.settings import Settings
from outbox.wiring import open_source

log = logging.getLogger(__name__)

#: Seconds for an orderly stop of relay or check-back: less than the 30 after which Kubernetes kills.
_DRAIN: Final = 25.0


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (relay_command, checkback_command, consume_command, health_command):
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


def _serve(loaded: Settings, serve: Serve) -> None:
    process = Process(loaded, serve)
    with stopped_by_signals(process.stop, _DRAIN):
        process.run()


@contextmanager
def stopped_by_signals(stop: Callable[[], object], drain_timeout: float = math.inf) -> Iterator[None]:
    """SIGTERM and SIGINT ask for an orderly stop; the second one ends the process at once.

    So does the end of ``drain_timeout`` seconds after the first: a database that hangs must not hold the process up.
    Whatever is under way then is left to leases and check-back, as after a crash.

    ``stop`` is called in a thread of its own: it takes locks, and a handler that waits for a lock which the interrupted
    main thread holds would wait for ever. Putting on a ``SimpleQueue`` is safe in a handler.
    """
    atexit.register(gc.freeze)  # else the interpreter looks for garbage to the last: a second of CPU time, for nothing
    asked: SimpleQueue[bool] = SimpleQueue()
    over = threading.Event()
    stopper = threading.Thread(target=_stop_when_asked, args=(asked, stop, over, drain_timeout), daemon=True)

    def on_signal(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + number))
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + number))
        asked.put(True)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    stopper.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        over.set()
        asked.put(False)
        stopper.join()


def _stop_when_asked(
    asked: "SimpleQueue[bool]", stop: Callable[[], object], over: threading.Event, drain_timeout: float
) -> None:
    if not asked.get():
        return
    stop()
    if not over.wait(min(drain_timeout, threading.TIMEOUT_MAX)):
        log.error("not done %.0f s after the signal to stop: ending; leases cover what was under way", drain_timeout)
        os._exit(1)
