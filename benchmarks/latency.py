"""From the commit of a business transaction until a consumer has the message, at a steady 100 messages a second.

    python -m benchmarks.latency [--rate 100] [--seconds 20]

PostgreSQL, a real broker, ``outbox relay`` and a POP consumer of this process, whose clock takes both moments: when
``commit`` has returned, and when ``receive`` has. Once with notifications and once without. The same load runs for 20
seconds before: until then the broker compiles (99th percentile 57 ms after 5 s of it, 32 ms after 25 s), and the new
consumer group reads what lies in the topic already. The last line is one JSON object of milliseconds: ``notify_p50``,
``notify_p99``, ``polling_p50``, ``polling_p99``. An idle relay is looked at before: ``idle_cpu_percent`` of a core.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from benchmarks.ship import relay, server, url_of
from benchmarks.transport import TOPIC, cluster
from outbox import Outbox
from outbox.brokers.remoting.pop import PopSource
from outbox.identity import fresh_token
from outbox.store.database import Database
from tests.services.databases import migrated

#: Seconds for which the relay is left alone, and after which what is missing counts as lost.
IDLE, LOST = 10.0, 30.0
#: Seconds of the same load before the measured ones.
WARM_UP = 20.0


class Arrivals:
    """When each message came, by its key."""

    def __init__(self, namesrv: str) -> None:
        self._source = PopSource(namesrv, f"bench-{fresh_token()}", [TOPIC])
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]
        self.seen: dict[str, float] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receives until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
            self._source.close()

    def wait_for(self, keys: Collection[str]) -> None:
        """Returns once all of these have come."""
        until = time.monotonic() + LOST
        while missing := set(keys) - self.seen.keys():
            assert time.monotonic() < until, f"{len(missing)} messages did not arrive"
            time.sleep(0.1)

    def _run(self) -> None:
        while not self._stop.is_set():
            deliveries = self._source.receive(32, 1.0)
            now = time.monotonic()
            for delivery in deliveries:
                self.seen.setdefault(delivery.keys[0], now)
            self._source.acknowledge_all(deliveries)


def committed(database: Database, rate: float, seconds: float) -> dict[str, float]:
    """Adds messages, one a transaction, at the rate; when each was committed."""
    outbox, done = Outbox("bench"), dict[str, float]()
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        key = f"order-{fresh_token()}"
        with database.transaction() as connection:
            outbox.add(connection, topic=TOPIC, key=key, payload=b"x" * 512)
        done[key] = time.monotonic()
    return done


def delays(database: Database, namesrv: str, rate: float, seconds: float) -> list[float]:
    """Milliseconds from commit to arrival, sorted."""
    arrivals = Arrivals(namesrv)
    with arrivals.listening():
        arrivals.wait_for(committed(database, rate, WARM_UP))
        done = committed(database, rate, seconds)
        arrivals.wait_for(done)
    return sorted(1000 * (arrivals.seen[key] - moment) for key, moment in done.items())


def main() -> None:
    """Runs both ways and prints their figures."""
    parser = argparse.ArgumentParser(description="From commit to consumer")
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    result: dict[str, object] = {"benchmark": "latency", "load": round(os.getloadavg()[0], 1)}
    with server() as maintenance, cluster() as namesrv:
        for name, notify in (("notify", True), ("polling", False)):
            with migrated(maintenance) as database, relay(url_of(database), namesrv, notify=notify) as process:
                time.sleep(15)  # started, and asleep
                before = process.cpu()
                time.sleep(IDLE)
                result[f"idle_cpu_percent_{name}"] = round(100 * (process.cpu() - before) / IDLE, 2)
                found = delays(database, namesrv, options.rate, options.seconds)
            for percent in (50, 90, 99):
                result[f"{name}_p{percent}"] = round(statistics.quantiles(found, n=100)[percent - 1], 1)
            print(f"{name:>8}", {key: value for key, value in result.items() if name in key}, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
