"""A rolling restart of two relays under load: repeats, and the longest gap between two arrivals at the broker.

    python -m benchmarks.rolling [--per-second 200] [--restarts 6]

Two ``outbox relay`` processes (default settings) work on a durable PostgreSQL and a real broker. One after the other is
told to stop (SIGTERM), is awaited and started again once it has ended, and the next follows when it is ready. The load
runs for 10 seconds before, while the broker compiles. The last line is one JSON object: ``longest_gap_s`` between two
arrivals by the broker's store times, ``longest_wait_s`` (the part of a gap in which rows waited: a crowded machine
holds up the load itself), ``p99_gap_s``, ``longest_pause_of_additions_s``, ``drain_s`` (most, from SIGTERM to the end
of the process), and how many messages were ``repeated`` and ``lost``.
"""

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ship import server, url_of
from benchmarks.transport import TOPIC, cluster
from outbox.store.database import Database
from tests.integration.relays import DEADLINE, RelayProcess, arrivals, delivered, longest_gap, pile_up
from tests.services.databases import migrated
from tests.waiting import expect_soon

#: Seconds between two additions, and of load before and after the restarts.
EVERY, BEFORE, AFTER = 0.02, 10.0, 3.0


class Producer:
    """Adds rows all the time."""

    def __init__(self, database: Database, per_second: int) -> None:
        self.rows = 0
        self.moments: list[float] = []
        self._database = database
        self.batch = max(1, round(per_second * EVERY))
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
            pile_up(self._database, TOPIC, self.batch)
            self.rows += self.batch
            self.moments.append(time.time())


def main() -> None:
    """Runs the benchmark and prints its line."""
    parser = argparse.ArgumentParser(description="A rolling restart of two relays under load")
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=6)
    options = parser.parse_args()
    with (
        server() as maintenance,
        cluster() as namesrv,
        migrated(maintenance) as database,
        tempfile.TemporaryDirectory() as folder,
    ):
        settings = {"OUTBOX_DATABASE_URL": url_of(database), "OUTBOX_BROKER_URL": f"rocketmq://{namesrv}"}
        relays = [RelayProcess(Path(folder), settings) for _ in range(2)]
        known, _ = arrivals(namesrv, TOPIC)
        with relays[0], relays[1]:
            with Producer(database, options.per_second) as producer:
                time.sleep(BEFORE)
                began = time.time()
                drains = [restarted(relays[number % 2]) for number in range(options.restarts)]
                time.sleep(AFTER)
            expect_soon(lambda: delivered(database) == producer.rows, "all rows are delivered", within=DEADLINE)
        keys, moments = arrivals(namesrv, TOPIC)
        gaps = list(found_gaps(moments[sum(known.values()) :], producer.moments, producer.batch, began))
        keys = Counter({key: count for key, count in keys.items() if key not in known})
        pause = longest_gap([it for it in producer.moments if it >= began])
        print(
            json.dumps(figures(producer.rows, keys, gaps, drains) | {"longest_pause_of_additions_s": round(pause, 3)})
        )


def restarted(relay: RelayProcess) -> float:
    """Seconds from SIGTERM to the end; the new process is ready."""
    began = time.monotonic()
    if code := relay.drain():
        raise RuntimeError(f"the relay ended with {code}: read its log")
    took = time.monotonic() - began
    relay.start()
    expect_soon(relay.ready, "the new one is ready", within=DEADLINE)
    return took


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds between two arrivals, and for how many of them a row was there that had not arrived."""

    seconds: float
    waiting: float


def found_gaps(arrived: list[float], added: list[float], batch: int, since: float) -> Iterator[Gap]:
    """All gaps that end after ``since``; a batch of rows was added at each of the other moments."""
    for number, (earlier, later) in enumerate(itertools.pairwise(arrived), 1):
        if later >= since:
            first = max(earlier, added[number // batch])  # when the batch of the first row that is missing was added
            yield Gap(later - earlier, max(0.0, later - first))


def figures(rows: int, keys: dict[str, int], gaps: list[Gap], drains: list[float]) -> dict[str, object]:
    """What is printed."""
    by_length = sorted(it.seconds for it in gaps)
    return {
        "benchmark": "rolling",
        "rows": rows,
        "restarts": len(drains),
        "longest_gap_s": round(by_length[-1], 3),
        "longest_wait_s": round(max(it.waiting for it in gaps), 3),
        "p99_gap_s": round(by_length[len(by_length) * 99 // 100], 3),
        "drain_s": round(max(drains), 3),
        "repeated": sum(count - 1 for count in keys.values()),
        "lost": rows - len(keys),
    }


if __name__ == "__main__":
    main()
