"""What ``outbox relay`` and ``outbox checkback`` run: one database or several, each by itself, and probes beside them.

With one database whatever is wrong at the start ends the process at once. With several (``[[databases]]``) each is
opened, served and, where that fails, tried again by itself: no other one feels it.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Final

import checkback.wiring
import relay.wiring
from outbox.brokers.base import Broker
from outbox.brokers.shared import SharedBroker
from outbox.cli.figures import FreshFigures, register_figures
from outbox.cli.options import ready
from outbox.cli.stopping import in_a_thread
from outbox.health.metrics import Metrics
from outbox.health.server import HealthServer
from outbox.health.supervisor import Supervisor
from outbox.health.vitals import Vitals
from outbox.settings import Settings, served
from outbox.store.database import Database
from outbox.store.gauges import Gauges
from outbox.store.identity import Identity
from outbox.wiring import open_broker
from relay.events import LogEvents
from relay.reporting import CountedEvents, FanOut

#: That everything was opened and built, by the name that probes are told.
_START: Final = "start"
#: Seconds for a listener to end.
_LEAVING: Final = 10.0


class SharedBrokers:
    """The connections to brokers, one for each producer group; closed together at the end."""

    def __init__(self) -> None:
        self._brokers: dict[str, SharedBroker] = {}
        self._lock = threading.Lock()

    def get(self, settings: Settings) -> SharedBroker:
        """The connection of the settings' group, opened where it is asked for first."""
        with self._lock:
            group = settings.producer_group
            if group not in self._brokers:
                self._brokers[group] = SharedBroker(open_broker(settings))
            return self._brokers[group]

    def close(self) -> None:
        """Ends them all."""
        for shared in self._brokers.values():
            shared.broker.close()


class ServedDatabase:
    """One database and what serves it, from ``ship`` or ``answer`` to ``stop``."""

    def __init__(self, name: str, settings: Settings, brokers: SharedBrokers, metrics: Metrics) -> None:
        self.name = name
        self.vitals = Vitals()
        self.vitals.expect(_START)
        self._settings = settings
        self._brokers = brokers
        self._metrics = metrics
        self._stopping = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        metrics.gauge(
            "outbox_ready", "1: rows are shipped, checks answered.", lambda: float(self.vitals.ready()), database=name
        )
        metrics.gauge("outbox_live", "0: a loop is stalled.", lambda: float(self.vitals.live()), database=name)

    def ship(self, *, checks: bool) -> None:
        """Runs the relay, and the check-back beside it, until ``stop``. Raises what keeps it from starting."""
        with self._opened() as (database, broker):
            log = self._settings.logger("relay")
            events = FanOut(LogEvents(log), CountedEvents(self._metrics, self.name))
            daemon = relay.wiring.build(self._settings, database, broker, events, vitals=self.vitals)
            with self._beside(database, broker) if checks else nullcontext():
                self._run(daemon.run, daemon.stop)

    def answer(self) -> None:
        """Runs the check-back alone until ``stop``."""
        with self._opened() as (database, broker):
            listener = checkback.wiring.build(self._settings, database, broker, self.vitals)
            supervisor = Supervisor(self.vitals, self._settings.logger("checkback"))

            def stop() -> None:
                """The supervisor first: a loop that ends is then not started again."""
                supervisor.stop()
                listener.stop()

            self._run(lambda: supervisor.run("checkback", lambda _: listener.run()), stop)

    def stop(self) -> None:
        """``ship`` or ``answer`` returns once what is under way has ended."""
        self.vitals.stop()
        self._stopping.set()
        self._stop()

    def _run(self, run: Callable[[], object], stop: Callable[[], object]) -> None:
        """A stop may have come while the database was opened."""
        self._stop = stop
        self.vitals.has(_START)  # by now everything else that it needs is expected
        if not self._stopping.is_set():
            run()

    @contextmanager
    def _opened(self) -> Iterator[tuple[Database, Broker]]:
        with ready(self._settings) as database:
            origin = Identity(database).origin(self._settings.service)
            register_figures(self._metrics, FreshFigures(Gauges(database).figures), self.name)
            with closing(self._brokers.get(self._settings).of(origin)) as broker:
                yield database, broker

    @contextmanager
    def _beside(self, database: Database, broker: Broker) -> Iterator[None]:
        """The check-back in a thread of the relay's process, so that one process is a whole deployment."""
        listener = checkback.wiring.build(self._settings, database, broker, self.vitals)
        supervisor = Supervisor(self.vitals, self._settings.logger("checkback"))
        thread = supervisor.start("checkback", lambda _: listener.run(), math.inf)
        try:
            yield
        finally:
            supervisor.stop()
            listener.stop()
            thread.join(_LEAVING)


#: What a process does with a database: blocks until that is stopped.
Serve = Callable[[ServedDatabase], None]


class Process:
    """All databases that this process serves."""

    def __init__(self, settings: Settings, serve: Serve) -> None:
        self._settings = settings
        self._serve = serve
        self._brokers = SharedBrokers()
        self._metrics = Metrics()
        self._databases = [
            ServedDatabase(name, its, self._brokers, self._metrics) for name, its in served(settings).items()
        ]
        self._supervisors = [Supervisor(database.vitals) for database in self._databases]

    def run(self) -> None:
        """Blocks until ``stop``."""
        with ExitStack() as stack:
            stack.callback(self._brokers.close)
            stack.enter_context(self._probes())
            if self._settings.databases:
                self._run_all()
            else:
                self._serve(self._databases[0])

    def stop(self) -> None:
        """Every database drains, all at the same time."""
        for supervisor in self._supervisors:
            supervisor.stop()
        for stopping in [in_a_thread(database.stop) for database in self._databases]:
            if stopping is not None:
                stopping.join()

    def _run_all(self) -> None:
        threads = [
            supervisor.start(database.name, lambda _, database=database: self._serve(database), math.inf)  # type: ignore[misc]
            for supervisor, database in zip(self._supervisors, self._databases, strict=True)
        ]
        for thread in threads:
            thread.join()

    def _probes(self) -> AbstractContextManager[object]:
        if self._settings.health_port is None:
            return nullcontext()
        vitals = {database.name: database.vitals for database in self._databases}
        return HealthServer(self._settings.health_host, self._settings.health_port, vitals, self._metrics.text)
