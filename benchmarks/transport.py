"""Half + confirmed commit over the remoting transport: pipelined, one process, one real broker.

    python -m benchmarks.transport [--version 5.4.0] [--windows 7] [--seconds 2] [--batch 256] [--batches 2]

``OUTBOX_TEST_ROCKETMQ`` names a running cluster with the topic ``outbox-bench``; else one is started and stopped here.
The last line is one JSON object; ``per_s`` is the median of the windows after a warm-up.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from outbox.brokers.base import Ending, Outgoing, Sent, Stored
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.services.rocketmq import NAMED, RocketMQ
from tests.services.rocketmq.cluster import DEFAULT_VERSION

TOPIC = "outbox-bench"
#: Seconds; the broker compiles its hot paths meanwhile.
WARM_UP = 15.0


class Load:
    """Threads that prepare and commit one batch after another."""

    def __init__(self, namesrv: str, *, batches: int, batch: int, body: int) -> None:
        self._broker = RemotingBroker(namesrv, "outbox-bench")
        self._batch = batch
        self._body = os.urandom(body)
        self._stop = False
        self.confirmed = [0] * batches
        self.failed = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(batches)]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads and the connection."""
        self._stop = True
        for thread in self._threads:
            thread.join()
        self._broker.close()

    def _run(self, number: int) -> None:
        while not self._stop:
            messages = [self._message() for _ in range(self._batch)]
            outcomes = self._broker.prepare(messages, timeout=10)
            halves = [outcome.half for outcome in outcomes if isinstance(outcome, Stored)]
            ended = self._broker.resolve([Ending(half, Verdict.COMMIT) for half in halves], monotonic() + 10)
            self._count(number, sum(each.confirmation is Confirmation.CONFIRMED for each in ended))

    def _count(self, number: int, confirmed: int) -> None:
        self.confirmed[number] += confirmed
        self.failed += self._batch - confirmed

    def _message(self) -> Outgoing:
        unique_id = unique_ids.fresh()
        properties = {
            "outbox-origin": "bench/1",
            "outbox-id": "1",
            "outbox-key": unique_id,
            "outbox-token": "0123456789abcdef",
            "outbox-mode": "transactional",
        }
        return Outgoing(TOPIC, self._body, unique_id, f"order-{unique_id}", "paid", properties)


class PlainLoad(Load):
    """The same with plain sends."""

    def _run(self, number: int) -> None:
        while not self._stop:
            outcomes = self._broker.send([self._message() for _ in range(self._batch)], timeout=10)
            self._count(number, sum(isinstance(each, Sent) for each in outcomes))


@contextmanager
def cluster(version: str = DEFAULT_VERSION) -> Iterator[str]:
    """The name server of a running cluster, or of one that is started for the run."""
    named = os.environ.get(NAMED)
    if named:
        yield named
        return
    with RocketMQ(checks="default", version=version, optimised=True) as started:
        started.create_topics([TOPIC])
        yield started.namesrv


def windows(load: Load, count: int, seconds: float) -> Iterator[tuple[float, float]]:
    """Rate (per second) and CPU time of this process (microseconds a message) of successive windows."""
    for _ in range(count):
        began, before, cpu = time.perf_counter(), sum(load.confirmed), time.process_time()
        time.sleep(seconds)
        moved = sum(load.confirmed) - before
        yield moved / (time.perf_counter() - began), 1e6 * (time.process_time() - cpu) / max(moved, 1)


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="Half + confirmed commit against a real broker")
    parser.add_argument("--version", default=DEFAULT_VERSION)
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--body", type=int, default=512)
    options = parser.parse_args()
    with cluster(options.version) as namesrv:
        load = Load(namesrv, batches=options.batches, batch=options.batch, body=options.body)
        load.start()
        try:
            time.sleep(WARM_UP)
            measured = list(windows(load, options.windows, options.seconds))
        finally:
            load.stop()
    print(f"{'window':>6} {'per s':>8} {'client CPU µs':>14}")
    for number, (rate, cpu) in enumerate(measured, 1):
        print(f"{number:>6} {rate:>8.0f} {cpu:>14.0f}")
    result = {
        "benchmark": "transport",
        "per_s": round(statistics.median(rate for rate, _ in measured)),
        "client_cpu_us": round(statistics.median(cpu for _, cpu in measured)),
        "failed": load.failed,
        "batch": options.batch,
        "batches": options.batches,
        "body": options.body,
        "version": options.version,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
