"""The relay with its default settings, against the bare half + confirmed commit exchange of the same transport.

    python -m benchmarks.relay [--rows 20000] [--rounds 3]

Each round takes the transport's figure, then lets ``outbox relay`` (a process of its own) ship the rows from a durable
PostgreSQL to the same broker; both sides are warm. The last line is one JSON object: ``ratio`` (median of the rounds),
``per_s`` and ``transport_per_s``; ``OUTBOX_TEST_ROCKETMQ`` and ``OUTBOX_TEST_POSTGRES_URL`` name running servers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import sqlalchemy as sa

from benchmarks.transport import TOPIC, Load, cluster, windows
from outbox import migrate
from outbox.identity import fresh_token
from outbox.lifecycle import INITIAL, Move, State, open_states, target_of
from outbox.message import Mode
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from tests.services.databases import fresh_database
from tests.services.postgres import Postgres

#: Seconds for which the bare exchange runs before it is measured, and is measured.
SETTLE, MEASURE = 4.0, 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """Rates per second of both sides, and CPU time a row of each process while the relay shipped."""

    transport: float
    relay: float
    cpu_us: dict[str, float]


@contextmanager
def server() -> Iterator[str]:
    """URL of a PostgreSQL server with safe settings."""
    named = os.environ.get("OUTBOX_TEST_POSTGRES_URL")
    if named:
        yield named
        return
    with Postgres(durable=True, max_wal_size="1GB") as started:
        yield started.url


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of each side, by the processes' names; a side that is not ours to see is missing."""
    sides = {"postgres": "database", "java": "broker"}
    spent: dict[str, float] = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        side = sides.get(process.info["name"])
        if side is not None and process.info["cpu_times"] is not None:
            spent[side] = spent.get(side, 0.0) + sum(process.info["cpu_times"][:2])
    return spent


@contextmanager
def relay(database_url: str, namesrv: str) -> Iterator[psutil.Process]:
    """``outbox relay`` with its default settings."""
    environment = {
        **os.environ,
        "OUTBOX_DATABASE_URL": database_url,
        "OUTBOX_BROKER_URL": f"rocketmq://{namesrv}",
        "OUTBOX_ORIGIN": "bench",
        "OUTBOX_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen([sys.executable, "-m", "outbox", "relay"], env=environment)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def add(database: Database, rows: int, body: bytes, *, parked: bool = False) -> None:
    """Adds the rows in one transaction; ``parked``: the relay does not see them before ``release``."""
    with database.transaction() as connection:
        values = {"state": INITIAL, "created_at": utc_now(), "available_at": utc_after(3600.0 if parked else 0.0)}
        statement = outbox.insert().values(**values, **{name: sa.bindparam(name) for name in _row(body)})
        connection.execute(statement, [_row(body) for _ in range(rows)])


def release(database: Database) -> None:
    """Lets the relay see the parked rows, all at once."""
    with database.transaction() as connection:
        connection.execute(outbox.update().where(state_in([INITIAL])).values(available_at=utc_now()))


def _row(body: bytes) -> dict[str, object]:
    key = f"order-{fresh_token()}{fresh_token()}"
    return {
        "topic": TOPIC,
        "key": key,
        "tag": "paid",
        "payload": body,
        "content_type": "application/octet-stream",
        "headers": {},
        "mode": Mode.TRANSACTIONAL,
    }


def shipped(database: Database, rows: int) -> float:
    """Waits until nothing is open; the rate from the first decision of these rows to the last delivery."""
    owed = sa.select(sa.func.count()).select_from(outbox).where(state_in(open_states()))
    while True:
        with database.transaction() as connection:
            if not connection.execute(owed).scalar_one():
                break
        time.sleep(0.25)
    last = sa.select(outbox.c.decided_at, outbox.c.delivered_at).order_by(outbox.c.id.desc()).limit(rows).subquery()
    with database.transaction() as connection:
        first, end = connection.execute(
            sa.select(sa.func.min(last.c.decided_at), sa.func.max(last.c.delivered_at))
        ).one()
        states = connection.execute(sa.select(outbox.c.state).distinct()).scalars().all()
    assert states == [target_of(Move.DELIVER)] == [State.DELIVERED], states
    return float(rows / (end - first).total_seconds())


def bare(namesrv: str) -> float:
    """The transport's own figure, now."""
    load = Load(namesrv, batches=2, batch=256, body=512)
    load.start()
    try:
        time.sleep(SETTLE)
        ((rate, _),) = windows(load, 1, MEASURE)
    finally:
        load.stop()
    return rate


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="The relay against the bare exchange of its transport")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    body = os.urandom(512)
    rounds: list[Round] = []
    with server() as maintenance, cluster("5.4.0") as namesrv, fresh_database(maintenance) as url:
        database = Database(url, statement_timeout=120)
        migrate.upgrade(database)
        with relay(url, namesrv) as process:
            add(database, options.rows, body)
            shipped(database, options.rows)
            for _ in range(options.rounds):
                transport = bare(namesrv)
                add(database, options.rows, body, parked=True)
                before = cpu_seconds() | {"relay": sum(process.cpu_times()[:2])}
                release(database)
                rate = shipped(database, options.rows)
                after = cpu_seconds() | {"relay": sum(process.cpu_times()[:2])}
                spent = {side: 1e6 * (after[side] - before[side]) / options.rows for side in before}
                rounds.append(Round(transport, rate, spent))
        database.close()
    report(rounds)


def report(rounds: list[Round]) -> None:
    """The table and the figures."""
    sides = list(rounds[0].cpu_us)
    print(f"{'round':>5} {'transport/s':>12} {'relay/s':>9} {'ratio':>6}", *(f"{side + ' µs':>12}" for side in sides))
    for number, it in enumerate(rounds, 1):
        figures = (f"{it.cpu_us[side]:>12.0f}" for side in sides)
        print(f"{number:>5} {it.transport:>12.0f} {it.relay:>9.0f} {it.relay / it.transport:>6.2f}", *figures)
    result = {
        "benchmark": "relay",
        "ratio": round(statistics.median(it.relay / it.transport for it in rounds), 3),
        "per_s": round(statistics.median(it.relay for it in rounds)),
        "transport_per_s": round(statistics.median(it.transport for it in rounds)),
        "cpu_us": {side: round(statistics.median(it.cpu_us[side] for it in rounds)) for side in sides},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
