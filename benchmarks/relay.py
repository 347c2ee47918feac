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

import psutil
import sqlalchemy as sa

from benchmarks.transport import TOPIC, Load, cluster, windows
from outbox import migrate
from outbox.identity import fresh_token
from outbox.lifecycle import INITIAL, Move, State, open_states, target_of
from outbox.message import Mode
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_now
from outbox.store.database import Database
from tests.services.databases import fresh_database
from tests.services.postgres import Postgres

#: Seconds for which the bare exchange runs before it is measured, and is measured.
SETTLE, MEASURE = 4.0, 5.0


@contextmanager
def server() -> Iterator[str]:
    """URL of a PostgreSQL server with safe settings."""
    named = os.environ.get("OUTBOX_TEST_POSTGRES_URL")
    if named:
        yield named
        return
    with Postgres(durable=True) as started:
        yield started.url


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


def add(database: Database, rows: int, body: bytes) -> None:
    """Adds the rows in one transaction, so that the relay sees them all at once."""
    with database.transaction() as connection:
        values = {"state": INITIAL, "created_at": utc_now(), "available_at": utc_now()}
        statement = outbox.insert().values(**values, **{name: sa.bindparam(name) for name in _row(body)})
        connection.execute(statement, [_row(body) for _ in range(rows)])


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
    rounds: list[tuple[float, float, float]] = []
    with server() as maintenance, cluster("5.4.0") as namesrv, fresh_database(maintenance) as url:
        database = Database(url, statement_timeout=120)
        migrate.upgrade(database)
        with relay(url, namesrv) as process:
            add(database, options.rows, body)
            shipped(database, options.rows)
            for _ in range(options.rounds):
                transport = bare(namesrv)
                before = sum(process.cpu_times()[:2])
                add(database, options.rows, body)
                rate = shipped(database, options.rows)
                rounds.append((transport, rate, 1e6 * (sum(process.cpu_times()[:2]) - before) / options.rows))
        database.close()
    report(rounds)


def report(rounds: list[tuple[float, float, float]]) -> None:
    """The table and the figures."""
    print(f"{'round':>5} {'transport/s':>12} {'relay/s':>9} {'ratio':>6} {'relay CPU µs':>13}")
    for number, (transport, rate, cpu) in enumerate(rounds, 1):
        print(f"{number:>5} {transport:>12.0f} {rate:>9.0f} {rate / transport:>6.2f} {cpu:>13.0f}")
    result = {
        "benchmark": "relay",
        "ratio": round(statistics.median(rate / transport for transport, rate, _ in rounds), 3),
        "per_s": round(statistics.median(rate for _, rate, _ in rounds)),
        "transport_per_s": round(statistics.median(transport for transport, _, _ in rounds)),
        "relay_cpu_us": round(statistics.median(cpu for _, _, cpu in rounds)),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
