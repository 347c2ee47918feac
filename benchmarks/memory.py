"""The relay's memory over many rows: passes are bounded, so it must not grow with the backlog.

    python -m benchmarks.memory [--rows 200000]

A PostgreSQL with the whole backlog, a real broker, ``outbox relay`` with its default settings. The last line is one
JSON object: resident memory in MiB after a tenth of the rows (``first_mib``), at the end (``last_mib``) and at most
(``most_mib``).
"""

import argparse
import json
import os
import time

from benchmarks.ship import add, relay, server, url_of
from benchmarks.transport import cluster
from tests.integration.relays import owed
from tests.services.databases import migrated


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="The relay's memory over many rows")
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    samples: list[tuple[int, float]] = []
    with server() as maintenance, cluster() as namesrv, migrated(maintenance) as database:
        for _ in range(10):
            add(database, rows // 10, os.urandom(512))
        with relay(url_of(database), namesrv) as process:
            left = rows
            while left:
                left = owed(database)
                samples.append((rows - left, process.resident() / 2**20))
                time.sleep(1)
    print(f"{'shipped':>9} {'MiB':>7}")
    for shipped, mib in samples[:: max(1, len(samples) // 20)]:
        print(f"{shipped:>9} {mib:>7.1f}")
    first = next(mib for shipped, mib in samples if shipped >= rows / 10)
    most = max(mib for _, mib in samples)
    figures = {"first_mib": round(first, 1), "last_mib": round(samples[-1][1], 1), "most_mib": round(most, 1)}
    print(json.dumps({"benchmark": "memory", "rows": rows, **figures}))


if __name__ == "__main__":
    main()
