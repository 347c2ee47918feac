"""What benchmarks of the relay share: server, database, rows, relay processes, and the rate of shipping."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

import psutil
import sqlalchemy as sa

from benchmarks.transport import TOPIC
from outbox import Outbox
from outbox.identity import fresh_token
from outbox.lifecycle import INITIAL, State, open_states
from outbox.message import Mode
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.notifications import announce
from tests.services.postgres import Postgres

ENVIRONMENT = {"OUTBOX_ORIGIN": "bench", "OUTBOX_LOG_LEVEL": "warning"}
#: A broker URL that nobody dials: the stand-in takes its place.
NOWHERE = "rocketmq://127.0.0.1:1"


@contextmanager
def server() -> Iterator[str]:
    """URL of a PostgreSQL server with safe settings."""
    named = os.environ.get("OUTBOX_TEST_POSTGRES_URL")
    if named:
        yield named
        return
    with Postgres(durable=True, max_wal_size="1GB") as started:
        yield started.url


def url_of(database: Database) -> str:
    """With its password."""
    return database.engine.url.render_as_string(hide_password=False)


def cpu_seconds(*names: str) -> float:
    """CPU time so far of this process's descendants of these names; where there are none, of all processes so named."""
    ours = [it for it in psutil.Process().children(recursive=True) if _name(it) in names]
    found = ours or [it for it in psutil.process_iter() if _name(it) in names]
    return sum(map(_cpu, found))


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _cpu(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0


class Shipper:
    """A relay process; afterwards, of a stand-in, what it counted."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._seen = psutil.Process(process.pid)
        self.statements = 0

    def cpu(self) -> float:
        """CPU seconds so far."""
        return float(sum(self._seen.cpu_times()[:2]))

    def resident(self) -> int:
        """Bytes of memory."""
        return int(self._seen.memory_info().rss)

    def stop(self) -> None:
        """Ends it in good order."""
        self._process.terminate()
        said, _ = self._process.communicate()
        self.statements = json.loads(said)["statements"] if said else 0


@contextmanager
def shipping(url: str, command: Sequence[str], **settings: object) -> Iterator[Shipper]:
    """``python -m`` this command over the database; ``settings`` by the names of ``OUTBOX_…``."""
    own = {f"OUTBOX_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**os.environ, **ENVIRONMENT, "OUTBOX_DATABASE_URL": url, **own}
    words = [sys.executable, "-m", *command]
    shipper = Shipper(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        yield shipper
    finally:
        shipper.stop()


def relay(url: str, namesrv: str, **settings: object) -> AbstractContextManager[Shipper]:
    """``outbox relay``, with its default settings but for those given."""
    return shipping(url, ["outbox", "relay"], broker_url=f"rocketmq://{namesrv}", **settings)


def stand_in(url: str, seconds: float = 0.0, **settings: object) -> AbstractContextManager[Shipper]:
    """A relay over a transport that takes so long a message."""
    command = ["benchmarks.stand_in_relay", "--seconds", str(seconds)]
    return shipping(url, command, broker_url=NOWHERE, **settings)


def add(database: Database, rows: int, body: bytes, *, hidden: bool = False, mode: Mode = Mode.TRANSACTIONAL) -> None:
    """Adds the rows in one transaction; ``hidden``: the relay does not see them before ``release``."""
    with database.transaction() as connection:
        values = {"state": INITIAL, "created_at": utc_now(), "available_at": utc_after(3600.0 if hidden else 0.0)}
        statement = outbox.insert().values(**values, **{name: sa.bindparam(name) for name in _row(body, mode)})
        connection.execute(statement, [_row(body, mode) for _ in range(rows)])


def add_to_lanes(database: Database, rows: int, body: bytes, lanes: int) -> None:
    """Adds hidden rows through the library, every other one to a lane."""
    outbox_ = Outbox("bench")
    with database.transaction() as connection:
        for number in range(rows):
            lane = f"lane-{number // 2 % lanes}" if number % 2 else None
            message = {"topic": TOPIC, "key": _key(), "payload": body, "lane": lane, "delay": timedelta(hours=1)}
            outbox_.add(connection, **message)  # type: ignore[call-overload]


def release(database: Database) -> None:
    """Lets the relay see the hidden rows, all at once, and tells it."""
    with database.transaction() as connection:
        announce(connection)
        seen = {"available_at": utc_now(), "not_before": None}
        connection.execute(outbox.update().where(state_in([INITIAL])).values(**seen))


def _key() -> str:
    return f"order-{fresh_token()}{fresh_token()}"


def _row(body: bytes, mode: Mode) -> dict[str, object]:
    return {
        "topic": TOPIC,
        "key": _key(),
        "tag": "paid",
        "payload": body,
        "content_type": "application/octet-stream",
        "headers": {},
        "mode": mode,
    }


def shipped(database: Database, rows: int) -> float:
    """Waits until nothing is open; the rate from the first of these rows that was decided or delivered to the last.

    Asks by the partial indexes, so that the question costs nothing beside what is measured.
    """
    owed = [sa.select(outbox.c.id).where(state_in([state])).limit(1) for state in open_states()]
    while _any(database, owed):
        time.sleep(0.25)
    moment = sa.func.coalesce(outbox.c.decided_at, outbox.c.delivered_at).label("first")
    last = sa.select(moment, outbox.c.delivered_at).order_by(outbox.c.id.desc()).limit(rows).subquery()
    ends = sa.select(sa.func.min(last.c.first), sa.func.max(last.c.delivered_at))
    with database.look() as connection:
        first, end = connection.execute(ends).one()
        states = connection.execute(sa.select(outbox.c.state).distinct()).scalars().all()
    assert states == [State.DELIVERED], states
    return float(rows / (end - first).total_seconds())


def claimed_twice(database: Database) -> int:
    """Rows that were claimed more than once."""
    with database.look() as connection:
        return int(connection.execute(sa.select(sa.func.count()).where(outbox.c.attempts > 1)).scalar_one())


def _any(database: Database, queries: Sequence[sa.Select[tuple[int]]]) -> bool:
    with database.look() as connection:
        return any(connection.execute(query).first() is not None for query in queries)
