"""A rolling restart of two relays under load: repeats, and the longest gap between two arrivals at the broker.

    python -m benchmarks.rolling [--per-second 200] [--restarts 6]

Two ``outbox relay`` processes (default settings) work on a durable PostgreSQL and a real broker. One after the other is
told to stop (SIGTERM), is awaited and started again once it has ended, and the next follows when it is ready. The last
line is one JSON object: ``longest_gap_s`` by the broker's store times, ``p99_gap_s``, ``longest_pause_of_additions_s``
(what a crowded machine does to the load itself), ``drain_s`` (most, from SIGTERM to the end of the process), and how
many messages were ``repeated`` and ``lost``.
"""

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.ship import server
from benchmarks.transport import TOPIC, cluster
from outbox import migrate
from outbox.store.database import Database
from tests.integration.relays import RelayProcess, arrivals, delivered, longest_gap, pile_up, wait
from tests.services.databases import fresh_database

#: Seconds between two additions, and of load before and after the restarts.
EVERY, AROUND = 0.02, 3.0


class Producer:
    """Adds rows all the time."""

    def __init__(self, database: Database, per_second: int) -> None:
        self.rows = 0
        self.moments: list[float] = []
        self._database = database
        self._batch = max(1, round(per_second * EVERY))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            pile_up(self._database, TOPIC, self._batch)
            self.rows += self._batch
            self.moments.append(time.time())


def main() -> None:
    """Runs the benchmark and prints its line."""
    parser = argparse.ArgumentParser(description="A rolling restart of two relays under load")
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=6)
    options = parser.parse_args()
    with (
        server() as maintenance,
        cluster("5.4.0") as namesrv,
        fresh_database(maintenance) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        database = Database(url, statement_timeout=60)
        migrate.upgrade(database)
        settings = {"OUTBOX_DATABASE_URL": url, "OUTBOX_BROKER_URL": f"rocketmq://{namesrv}"}
        relays = [RelayProcess(Path(folder), settings) for _ in range(2)]
        known, _ = arrivals(namesrv, TOPIC)
        with relays[0], relays[1]:
            with Producer(database, options.per_second) as producer:
                time.sleep(AROUND)
                drains = [restarted(relays[number % 2]) for number in range(options.restarts)]
                time.sleep(AROUND)
            wait("all rows are delivered", lambda: delivered(database) == producer.rows)
        keys, moments = arrivals(namesrv, TOPIC)
        moments = moments[sum(known.values()) :]
        keys = Counter({key: count for key, count in keys.items() if key not in known})
        print(json.dumps(figures(producer.rows, keys, moments, producer.moments, drains)))
        database.close()


def restarted(relay: RelayProcess) -> float:
    """Seconds from SIGTERM to the end; the new process is ready."""
    began = time.monotonic()
    if code := relay.drain():
        raise RuntimeError(f"the relay ended with {code}: read its log")
    took = time.monotonic() - began
    relay.start()
    wait("the new one is ready", relay.ready)
    return took


def figures(
    rows: int, keys: dict[str, int], moments: list[float], added: list[float], drains: list[float]
) -> dict[str, object]:
    """What is printed."""
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(moments))
    return {
        "benchmark": "rolling",
        "rows": rows,
        "restarts": len(drains),
        "longest_gap_s": round(longest_gap(moments), 3),
        "longest_pause_of_additions_s": round(longest_gap(added), 3),
        "p99_gap_s": round(gaps[len(gaps) * 99 // 100], 3),
        "drain_s": round(max(drains), 3),
        "repeated": sum(count - 1 for count in keys.values()),
        "lost": rows - len(keys),
    }


if __name__ == "__main__":
    main()
