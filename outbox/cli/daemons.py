"""``outbox relay``, ``outbox checkback``, ``outbox consume``: the processes that run until SIGTERM."""

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Annotated, Final

import typer

import checkback.wiring
import relay.wiring
from outbox import settings
from outbox.brokers.base import Broker
from outbox.cli.options import BrokerUrl, DatabaseUrl, Origin, reachable, ready
from outbox.cli.target import Target, imported, target_reachable
from outbox.consumer import RunnerSettings, run
from outbox.consumer.schedule import ORDERLY_DELAYS, RETRY_DELAYS
from outbox.settings import Settings
from outbox.store.database import Database
from outbox.wiring import open_broker, open_source

log = logging.getLogger(__name__)

#: Seconds for an orderly stop of relay or check-back: less than the 30 after which Kubernetes kills.
_DRAIN: Final = 25.0


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (relay_command, checkback_command, consume_command):
        app.command(command.__name__.removesuffix("_command"))(command)


def relay_command(
    database_url: DatabaseUrl = None,
    broker_url: BrokerUrl = None,
    origin: Origin = None,
    checks: Annotated[bool, typer.Option("--checkback/--no-checkback", help="Answer the broker's checks too.")] = True,
) -> None:
    """Ships rows to the broker until SIGTERM; a second one stops at once."""
    loaded = settings.load(database_url=database_url, broker_url=broker_url, origin=origin)
    with _connected(loaded) as (database, broker):
        with reachable(database):
            daemon = relay.wiring.build(loaded, database, broker)
        with (
            stopped_by_signals(daemon.stop, _DRAIN),
            _answering(loaded, database, broker) if checks else _nothing(),
        ):
            daemon.run()


def checkback_command(database_url: DatabaseUrl = None, broker_url: BrokerUrl = None, origin: Origin = None) -> None:
    """Answers the broker's transaction checks from the database until SIGTERM."""
    loaded = settings.load(database_url=database_url, broker_url=broker_url, origin=origin)
    with _connected(loaded) as (database, broker):
        with reachable(database):
            listener = checkback.wiring.build(loaded, database, broker)
        with stopped_by_signals(listener.stop, _DRAIN):
            listener.run()


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


@contextmanager
def _connected(loaded: Settings) -> Iterator[tuple[Database, Broker]]:
    with ready(loaded) as database:
        broker = open_broker(loaded)
        try:
            yield database, broker
        finally:
            broker.close()


@contextmanager
def _answering(loaded: Settings, database: Database, broker: Broker) -> Iterator[None]:
    """The check-back in a thread of the relay's process, so that one process is a whole deployment."""
    with reachable(database):
        listener = checkback.wiring.build(loaded, database, broker)
    thread = threading.Thread(target=listener.run, name="checkback", daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.stop()
        thread.join(timeout=10)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def stopped_by_signals(stop: Callable[[], object], drain_timeout: float = math.inf) -> Iterator[None]:
    """SIGTERM and SIGINT ask for an orderly stop; the second one ends the process at once.

    So does the end of ``drain_timeout`` seconds after the first: a database that hangs must not hold the process up.
    Whatever is under way then is left to leases and check-back, as after a crash.

    ``stop`` is called in a thread of its own: it takes locks, and a handler that waits for a lock which the interrupted
    main thread holds would wait for ever. Putting on a ``SimpleQueue`` is safe in a handler.
    """
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
