"""Relay processes on real servers, watched through their probes: what an outage test and a rolling restart need."""

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import sqlalchemy as sa

from outbox.identity import fresh_token
from outbox.lifecycle import INITIAL, Move, State, open_states, target_of
from outbox.message import Mode
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_now
from outbox.store.database import Database
from outbox.store.notifications import announce
from tests.probes import probed
from tests.services.ports import free_port
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

#: Generous: the machine may be busy.
DEADLINE = 180.0
#: Rows of one INSERT.
_AT_ONCE = 5_000


class RelayProcess:
    """``outbox relay`` with probes."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._port = free_port()
        self._folder = folder
        self._settings = {
            **settings,
            "OUTBOX_HEALTH_PORT": str(self._port),
            "OUTBOX_HEALTH_HOST": "127.0.0.1",
            "OUTBOX_ORIGIN": "tests",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def start(self) -> Self:
        """Starts, without a wait."""
        self._starts += 1
        with (self._folder / f"relay-{self._port}-{self._starts}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outbox", "relay"],
                env={**os.environ, **self._settings},
                stdout=log,
                stderr=log,
            )
        return self

    def told(self) -> dict[str, Any]:
        """What its readiness probe says; {} while nobody answers."""
        return dict(probed(self._port, "/readyz")[1])

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        return bool(self.told().get("ready"))

    def lacks(self, need: str) -> bool:
        """Whether it says that something is away."""
        told = self.told().get("databases", {})
        return any(not it["needs"].get(need, {"ok": True})["ok"] for it in told.values())

    def resident_mb(self) -> float:
        """Its memory."""
        assert self._process is not None
        return float(psutil.Process(self._process.pid).memory_info().rss / 1e6)

    def drain(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE)

    def __enter__(self) -> Self:
        self.start()
        try:
            expect_soon(self.ready, "the relay is ready", within=DEADLINE)
        except BaseException:
            self._end()  # nobody else does: a process that is left makes a test fail that comes later
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def pile_up(database: Database, topic: str, rows: int, payload: bytes = b"x" * 200) -> None:
    """Adds rows, quickly, and tells sleeping relays of them as ``Outbox.add`` does."""
    fixed = {"state": INITIAL, "created_at": utc_now(), "available_at": utc_now()}
    given: dict[str, Any] = {name: sa.bindparam(name) for name in _row(topic, payload)}
    statement = outbox.insert().values(**fixed, **given)
    for first in range(0, rows, _AT_ONCE):
        with database.transaction() as connection:
            connection.execute(statement, [_row(topic, payload) for _ in range(min(_AT_ONCE, rows - first))])
            announce(connection)


def _row(topic: str, payload: bytes) -> dict[str, object]:
    return {
        "topic": topic,
        "key": f"key-{fresh_token()}",
        "payload": payload,
        "content_type": "application/octet-stream",
        "headers": {},
        "mode": Mode.TRANSACTIONAL,
    }


def owed(database: Database) -> int:
    """Rows that still owe a message."""
    with database.transaction() as connection:
        query = sa.select(sa.func.count()).select_from(outbox).where(state_in(open_states()))
        return int(connection.execute(query).scalar_one())


def delivered(database: Database) -> int:
    """Rows whose message is visible; none may be dead."""
    with database.transaction() as connection:
        counted = connection.execute(sa.select(outbox.c.state, sa.func.count()).group_by(outbox.c.state))
        rows = {str(state): int(number) for state, number in counted}
    assert State.DEAD.value not in rows, rows
    return rows.get(target_of(Move.DELIVER).value, 0)


def decided_order(database: Database, after_id: int) -> list[int]:
    """The ids of rows above this one in the order in which the relay decided about them."""
    query = sa.select(outbox.c.id).where(outbox.c.id > after_id).order_by(outbox.c.decided_at, outbox.c.id)
    with database.transaction() as connection:
        return list(connection.execute(query).scalars())


def displaced(order: Sequence[int], most: int) -> list[int]:
    """The rows that left by more places later than their age has them: halves of unknown fate wait for a while."""
    return [order[place] for due, place in _places(order) if place - due > most]


def _places(order: Sequence[int]) -> list[tuple[int, int]]:
    by_age = {row_id: place for place, row_id in enumerate(sorted(order))}
    return [(by_age[row_id], place) for place, row_id in enumerate(order)]


def first_delivery(database: Database, after_id: int, since: Any) -> float:
    """Seconds from a moment of the database's clock to the first delivery of a row above this id."""
    query = sa.select(sa.func.min(outbox.c.delivered_at)).where(outbox.c.id > after_id)
    with database.transaction() as connection:
        return max(0.0, float((connection.execute(query).scalar_one() - since).total_seconds()))


def now(database: Database) -> Any:
    """The database's clock."""
    with database.transaction() as connection:
        return connection.execute(sa.select(utc_now())).scalar_one()


def last_id(database: Database) -> int:
    """The highest id."""
    with database.transaction() as connection:
        return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(outbox.c.id), 0))).scalar_one())


def arrivals(namesrv: str, topic: str, count: int = 0) -> tuple[Counter[str], list[float]]:
    """How often each key lies in the topic, and the moments at which the broker made messages visible, in order.

    Read once there are ``count`` messages: the broker shows what it has stored a moment later.
    """
    with Admin(namesrv) as admin:
        messages = admin.read_soon(topic, count)
    return Counter(it.properties["KEYS"] for it in messages), sorted(it.stored_at / 1000 for it in messages)


def longest_gap(moments: Sequence[float]) -> float:
    """Seconds between two arrivals, at most."""
    return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=0.0)
