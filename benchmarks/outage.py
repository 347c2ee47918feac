"""A broker that is away while rows pile up: memory meanwhile, the first message after it is back, and the order.

    python -m benchmarks.outage [--rows 200000] [--minutes 30]

``outbox relay`` (a process of its own, default settings) works on a durable PostgreSQL and a RocketMQ of the run's own.
Its broker is killed, the rows are added, it stays away for so many minutes and comes back on the same store. The last
line is one JSON object: ``rss_mb`` (before, most), ``dead``, ``attempts_most`` (claims of one row), ``first_message_s``
(from the moment at which the broker takes topics again to the first delivery by the database's clock),
``drained_per_s``, ``displaced_rows`` (how many left later than their age has them, by more places than passes have in
hand: halves of unknown fate wait for a while), ``lost`` and ``repeated``.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from benchmarks.ship import server, url_of
from benchmarks.transport import TOPIC
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.store.database import Database
from tests.integration.relays import (
    DEADLINE,
    RelayProcess,
    arrivals,
    decided_order,
    delivered,
    displaced,
    first_delivery,
    last_id,
    now,
    pile_up,
)
from tests.services.databases import migrated
from tests.services.rocketmq import RocketMQ
from tests.waiting import expect_soon

#: Rows in the passes of a relay, and as many again.
IN_HAND = 2 * 2 * 256
#: Rows that make the relay warm, and seconds for all the others to be shipped.
WARM, DRAINED = 5_000, 3_600.0


def main() -> None:
    """Runs the benchmark and prints its line."""
    parser = argparse.ArgumentParser(description="A broker that is away while rows pile up")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    with (
        server() as maintenance,
        RocketMQ(checks="default", optimised=True) as cluster,
        migrated(maintenance) as database,
        tempfile.TemporaryDirectory() as folder,
    ):
        cluster.create_topics([TOPIC])
        settings = {"OUTBOX_DATABASE_URL": url_of(database), "OUTBOX_BROKER_URL": f"rocketmq://{cluster.namesrv}"}
        with RelayProcess(Path(folder), settings) as relay:
            print(json.dumps(away(database, cluster, relay, options.rows, options.minutes * 60)))


def away(database: Database, cluster: RocketMQ, relay: RelayProcess, rows: int, seconds: float) -> dict[str, object]:
    """The figures of one outage."""
    pile_up(database, TOPIC, WARM)
    expect_soon(lambda: delivered(database) == WARM, "the relay is warm", within=DEADLINE)
    before, memory = last_id(database), [relay.resident_mb()]
    cluster.kill_broker()
    over = time.monotonic() + seconds
    pile_up(database, TOPIC, rows)
    while time.monotonic() < over:
        memory.append(relay.resident_mb())
        time.sleep(min(5.0, max(0.0, over - time.monotonic())))
    attempts = most_attempts(database)
    cluster.restart_broker()
    back, began = now(database), time.monotonic()
    expect_soon(lambda: delivered(database) == WARM + rows, "the backlog is delivered", within=DRAINED)
    took = time.monotonic() - began
    keys, _ = arrivals(cluster.namesrv, TOPIC)
    return {
        "benchmark": "outage",
        "rows": rows,
        "minutes": round(seconds / 60, 1),
        "rss_mb": {"before": round(memory[0], 1), "most": round(max(memory), 1)},
        "dead": dead(database),
        "attempts_most": attempts,
        "first_message_s": round(first_delivery(database, before, back), 3),
        "drained_per_s": round(rows / took),
        "displaced_rows": len(displaced(decided_order(database, before), IN_HAND)),
        "lost": WARM + rows - len(keys),
        "repeated": sum(count - 1 for count in keys.values()),
    }


def dead(database: Database) -> int:
    """How many rows were given up."""
    with database.look() as connection:
        return int(connection.execute(sa.select(sa.func.count()).where(outbox.c.state == State.DEAD)).scalar_one())


def most_attempts(database: Database) -> int:
    """How often one row was claimed, at most."""
    with database.transaction() as connection:
        return int(connection.execute(sa.select(sa.func.max(outbox.c.attempts))).scalar_one())


if __name__ == "__main__":
    main()
