"""How a client of ``benchmarks.transports`` is measured, in its own process.

Each line of standard input, ``settle seconds``, lets all threads work for so long and is answered with one JSON line
about the ``seconds`` after ``settle``; between the lines the client rests, with its connections open. The end of input
ends it. ``benchmarks/java/TransactionBench.java`` does the same in Java.
"""

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

TOPIC: Final = "outbox-bench"
PROPERTIES: Final = {
    "outbox-origin": "bench/1",
    "outbox-id": "1",
    "outbox-token": "0123456789abcdef",
    "outbox-mode": "transactional",
}

#: Half and commit of one or many messages; how many of them were committed, and how many failed.
Work = Callable[[], tuple[int, int]]


@dataclass(slots=True)
class _Worker:
    """What one thread has done: seconds and messages of each call, and the messages that failed."""

    work: Work
    laps: list[tuple[float, int]] = field(default_factory=list)
    failed: int = 0

    def run(self, stop: threading.Event) -> None:
        """Works until told to stop."""
        while not stop.is_set():
            began = time.perf_counter()
            done, failed = self.work()
            self.laps.append((time.perf_counter() - began, done))
            self.failed += failed


def serve(work: Work, threads: int) -> None:
    """Answers the lines of standard input until it ends."""
    for line in sys.stdin:
        settle, seconds = map(float, line.split())
        print(json.dumps(_measure(work, threads, settle, seconds)), flush=True)


def _measure(work: Work, threads: int, settle: float, seconds: float) -> dict[str, float]:
    stop = threading.Event()
    workers = [_Worker(work) for _ in range(threads)]
    running = [threading.Thread(target=worker.run, args=(stop,)) for worker in workers]
    for thread in running:
        thread.start()
    time.sleep(settle)
    marks, failed = [len(worker.laps) for worker in workers], sum(worker.failed for worker in workers)
    began, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    laps = [lap for worker, mark in zip(workers, marks, strict=True) for lap in worker.laps[mark:]]
    failed = sum(worker.failed for worker in workers) - failed
    stop.set()
    for thread in running:
        thread.join()
    return {
        "count": sum(done for _, done in laps),
        "failed": failed,
        "seconds": took,
        "cpu_seconds": spent,
        "p50_ms": 1000 * quantile(laps, 0.50),
        "p99_ms": 1000 * quantile(laps, 0.99),
    }


def quantile(laps: Sequence[tuple[float, int]], share: float) -> float:
    """Seconds within which this share of the messages was done; each took as long as the call it was part of."""
    ordered = sorted(laps)
    reached = list(itertools.accumulate(done for _, done in ordered))
    for (seconds, _), done in zip(ordered, reached, strict=True):
        if done >= share * reached[-1]:
            return seconds
    return 0.0
