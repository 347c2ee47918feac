"""A deployment under test: database, broker, and the toolkit's processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from outbox import faults
from outbox.brokers.embedded.storefile import Unavailable
from outbox.brokers.remoting.connections import RemotingError
from outbox.lifecycle import State, open_states
from outbox.store.database import Database
from outbox.store.operations import Operations
from tests.acceptance.shop import effects, metadata, orders

ROOT = Path(__file__).parents[2]
#: Generous: the machine may be busy. No claim about time hangs on it.
DEADLINE = 300.0
#: A test may wait that long several times, and each wait says by itself what is missing.
patient = pytest.mark.timeout(1800)

#: Short leases, so that a crash is repaired while a test waits. The grace is longer than the 3 s that a COMMIT may wait
#: in a broker's queue, and than a process stands still on a busy machine: a later one makes a second message.
QUICK = {
    "OUTBOX_LEASE": "6",
    "OUTBOX_SEND_TIMEOUT": "3",
    "OUTBOX_COMMIT_WINDOW": "2",
    "OUTBOX_COMMIT_GRACE": "6",
    "OUTBOX_RECONCILE_EVERY": "0.5",
    "OUTBOX_HEARTBEAT_EVERY": "1",
    "OUTBOX_CHECK_TIMEOUT": "1",
    "OUTBOX_CHECK_INTERVAL": "5",  # the embedded broker asks 15 times: there has to be somebody who answers by then
}


def group_of(topic: str) -> str:
    """The producer group: others with the same one on a shared broker would get our checks."""
    return f"outbox-{topic}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as the broker shows it."""

    key: str
    body: bytes


class Deployment:
    """Starts processes and looks at what they did; ``stop`` ends every one of them."""

    def __init__(
        self, folder: Path, database_url: str, broker_url: str, topic: str, visible: Callable[[], list[Seen]]
    ) -> None:
        self.topic = topic
        #: The embedded broker makes topics as they come.
        self.makes_topics = broker_url.startswith("embedded")
        #: All visible messages of the topic, repeats included.
        self.messages = visible
        self._folder = folder
        self._environment = {
            **os.environ,
            **QUICK,
            "OUTBOX_DATABASE_URL": database_url,
            "OUTBOX_BROKER_URL": broker_url,
            "OUTBOX_ORIGIN": "shop",
            "OUTBOX_GROUP": group_of(topic),
            "SHOP_DATABASE_URL": database_url,
            "SHOP_TOPIC": topic,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}
        #: A relay may stand still while it locks what a test wants.
        self.database = Database(database_url, lock_timeout=60, statement_timeout=60)
        self.operations = Operations(self.database)
        metadata.create_all(self.database.engine)

    def outbox(self, *arguments: str, fault: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Starts ``outbox …``; ``fault`` arms a point of ``outbox.faults``."""
        return self._start(
            ["-m", "outbox", *arguments], {**environment, faults.VARIABLE: fault} if fault else environment
        )

    def produce(self, count: int) -> subprocess.Popen[bytes]:
        """Starts the producing service."""
        return self._start(["-m", "tests.acceptance.shop", str(count)], {})

    def consume(self) -> subprocess.Popen[bytes]:
        """Starts the consumer."""
        return self.outbox("consume", "tests.acceptance.shop:inbox", "--group", f"shop-{self.topic}")

    def committed(self) -> list[str]:
        """The keys of the orders that exist."""
        with self.database.transaction() as connection:
            return list(connection.execute(sa.select(orders.c.key)).scalars())

    def visible(self) -> list[str]:
        """The keys of all visible messages of the topic, repeats included."""
        return [message.key for message in self.messages()]

    def arrived(self, count: int) -> list[str]:
        """As ``visible``, once there are so many: what a broker has confirmed lies in its queue a moment later."""
        self.wait(f"{count} messages to be in their queues", lambda: len(self.messages()) >= count)
        return self.visible()

    def effects(self) -> list[str]:
        """A key for each effect, in their order."""
        with self.database.transaction() as connection:
            return list(connection.execute(sa.select(effects.c.key).order_by(effects.c.id)).scalars())

    def states(self) -> Mapping[State, int]:
        """Rows by state, all of them counted: of many delivered rows the gauges tell what the database guesses."""
        return self.operations.figures(exact=True).rows

    def finished(self) -> bool:
        """Whether no row owes a message; of such rows the gauges are exact."""
        rows = self.operations.figures().rows
        return not any(rows[state] for state in open_states())

    def wait(self, what: str, done: Callable[[], bool], deadline: float = DEADLINE) -> None:
        """Waits for a condition (where a server is away it is not fulfilled); fails with the processes' last words."""
        until = time.monotonic() + deadline
        while not _holds(done):
            if time.monotonic() > until:
                raise AssertionError(f"not within {deadline} s: {what}\n{self._last_words()}")
            time.sleep(0.1)

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What a process has printed so far."""
        return self._logs[process.pid].read_text(errors="replace")

    def killed(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the process died by SIGKILL, as an armed fault makes it."""
        return process.poll() == -signal.SIGKILL

    def stop(self) -> None:
        """Ends whatever still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.database.close()

    def _start(self, arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        path = self._folder / f"{len(self._processes)}-{arguments[2]}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**self._environment, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        self._logs[process.pid] = path
        return process

    def _last_words(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def _holds(done: Callable[[], bool]) -> bool:
    try:
        return done()
    except (sa.exc.OperationalError, RemotingError, Unavailable):
        return False
