"""The demo's stage: a folder, a database, the embedded broker, and the processes that come and go."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from outbox import faults, migrate
from outbox.brokers.base import Ending, Half, Outgoing
from outbox.brokers.embedded.inspect import EmbeddedInspector
from outbox.cli.demo.folder import emptied
from outbox.cli.demo.shop import GROUP, TOPIC, bookings, chosen, metadata
from outbox.clock import monotonic
from outbox.errors import OutboxError
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict, open_states
from outbox.schema import outbox
from outbox.settings import Settings, load
from outbox.store.halves import HALF, half_of
from outbox.store.operations import Operations
from outbox.wiring import broker_timing, open_broker, open_database

#: Short leases and checks, so that a crash is repaired while one watches.
QUICK: dict[str, Any] = {
    "origin": "demo",
    "lease": 4.0,
    "send_timeout": 2.0,
    "commit_window": 1.0,
    "commit_grace": 1.0,
    "reconcile_every": 0.5,
    "heartbeat_every": 1.0,
    "passes": 1,
    "check_timeout": 1.0,
    # The broker gives a half up after 15 checks, heard or not: not before the story does, however slowly its check-back
    # starts.
    "check_interval": 4.0,
}
#: Seconds that one step may take.
PATIENCE = 60.0
Found = TypeVar("Found")


class Stage:
    """Everything that the story needs; ``close`` ends the processes that still run."""

    def __init__(self, folder: Path) -> None:
        self._folder = emptied(folder)
        self._broker_file = self._folder / "broker.db"
        urls = {"database_url": f"sqlite:///{self._folder}/shop.db", "broker_url": f"embedded://{self._broker_file}"}
        self.settings: Settings = load(**QUICK, **urls)
        self.database = open_database(self.settings)
        migrate.upgrade(self.database)
        metadata.create_all(self.database.engine)
        self._operations = Operations(self.database)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            **{f"OUTBOX_{name.upper()}": str(value) for name, value in (QUICK | urls).items()},
        }

    def start(self, *command: str, fault: str | None = None) -> subprocess.Popen[bytes]:
        """Starts ``outbox …``; its log lies in the folder. ``fault``: where it is to be killed."""
        armed = {faults.VARIABLE: fault} if fault else {}
        with (self._folder / f"{len(self._processes)}-{command[0]}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 -- our own command line
                [sys.executable, "-m", "outbox", *command], env=self._environment | armed, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Waits until ``done``; an ``OutboxError`` says where to look if it takes too long."""
        until = monotonic() + PATIENCE
        while not done():
            if monotonic() > until:
                raise OutboxError(f"demo: not within {PATIENCE:.0f} s: {what}; see the logs in {self._folder}")
            time.sleep(0.05)

    def open_halves(self) -> int:
        """Half messages that wait for their end."""
        return int(self._inspected(lambda broker: len(broker.open_halves())))

    def visible(self) -> Counter[str]:
        """How often each order's message is visible."""
        return Counter(self._inspected(lambda broker: [message.key for message in broker.visible(TOPIC)]))

    def consumed_all(self) -> bool:
        """Whether the stock service has acknowledged every message, duplicates included."""
        return self._inspected(lambda broker: broker.backlog(GROUP, TOPIC)) == 0

    def effects(self) -> Counter[str]:
        """How often each order was booked."""
        with self.database.transaction() as connection:
            return Counter(connection.execute(sa.select(bookings.c.order_key)).scalars())

    def unfinished(self) -> int:
        """Rows that still owe a message."""
        rows = self._operations.figures().rows
        return sum(rows[state] for state in open_states())

    def written(self) -> set[str]:
        """The keys of all committed rows."""
        with self.database.transaction() as connection:
            return set(connection.execute(sa.select(outbox.c.key)).scalars())

    def inject_duplicates(self, committed_again: int, sent_again: int) -> None:
        """Commits some halves a second time, and sends some events again under new message ids."""
        keys = chosen(sorted(self.written()), committed_again + sent_again)
        broker = open_broker(self.settings)
        halves = [Ending(half, Verdict.COMMIT) for half in self._halves(keys[:committed_again])]
        broker.resolve(halves, monotonic() + 10)
        broker.send([self._again(key) for key in keys[committed_again:]], 10)
        broker.close()

    def close(self) -> None:
        """Ends what runs."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.database.close()

    def _halves(self, keys: list[str]) -> list[Half]:
        with self.database.transaction() as connection:
            return [half_of(row) for row in connection.execute(sa.select(*HALF).where(outbox.c.key.in_(keys)))]

    def _again(self, key: str) -> Outgoing:
        with self.database.transaction() as connection:
            payload = connection.execute(sa.select(outbox.c.payload).where(outbox.c.key == key)).scalar_one()
        return Outgoing(TOPIC, payload, unique_ids.fresh(), key)

    def _inspected(self, look: Callable[[EmbeddedInspector], Found]) -> Found:
        with EmbeddedInspector(self._broker_file, broker_timing(self.settings)) as inspector:
            return look(inspector)
