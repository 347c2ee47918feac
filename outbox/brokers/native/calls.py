"""A bounded number of threads for the client's blocking calls: many messages, one deadline."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from outbox.brokers.base import BrokerClosed, Outage, Outgoing, Unknown
from outbox.brokers.native.queues import QueueName
from outbox.clock import monotonic

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Placed:
    """A message and where it goes."""

    message: Outgoing
    queue: QueueName
    #: Of the broker that has the queue.
    address: str


Outcome = TypeVar("Outcome")
#: Sends one message.
Call = Callable[[Placed], Outcome]

_NOT_BEGUN: Final = Outage("no thread was free in time: send less at once, or raise OUTBOX_NATIVE_THREADS")
_NOT_BACK: Final = Unknown("the client has not answered in time")


class _Batch(Generic[Outcome]):
    """Messages that threads take one after another until the time is over."""

    def __init__(self, call: Call[Outcome], messages: Sequence[Placed]) -> None:
        self._call = call
        self._messages = messages
        self._waiting = iter(_by_lane(messages))
        self._over = False
        self._lock = threading.Lock()
        self._outcomes: list[Outcome | Outage | Unknown] = [_NOT_BEGUN] * len(messages)

    def work(self) -> None:
        """Sends until nothing waits."""
        while (indices := self._next()) is not None:
            for index in indices:
                if self._begin(index):
                    self._finish(index, self._sent(self._messages[index]))

    def end(self) -> list[Outcome | Outage | Unknown]:
        """No call begins after this; what is known by now."""
        with self._lock:
            self._over = True
            return list(self._outcomes)

    def _next(self) -> Sequence[int] | None:
        with self._lock:
            return None if self._over else next(self._waiting, None)

    def _begin(self, index: int) -> bool:
        with self._lock:
            if not self._over:
                self._outcomes[index] = _NOT_BACK
            return not self._over

    def _finish(self, index: int, outcome: Outcome | Outage) -> None:
        with self._lock:
            self._outcomes[index] = outcome

    def _sent(self, message: Placed) -> Outcome | Outage:
        try:
            return self._call(message)
        except BrokerClosed as closed:
            return Outage(str(closed))


class Calls:
    """Runs batches of calls on the same threads; safe to use from several threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "native-send")

    def run(self, call: Call[Outcome], messages: Sequence[Placed], until: float) -> list[Outcome | Outage | Unknown]:
        """Outcomes in order, by ``until``: ``Outage`` for what found no thread, ``Unknown`` for what is not back.

        Messages of one lane are sent one after another.
        """
        batch = _Batch(call, messages)
        done, _ = wait(self._workers(batch.work, len(messages)), timeout=max(0.0, until - monotonic()))
        outcomes = batch.end()
        for worker in done:
            worker.result()
        return outcomes

    def _workers(self, work: Callable[[], None], most: int) -> Sequence["Future[None]"]:
        """As many threads as the system has for it: a batch that some work on must be ended like any other."""
        workers: list[Future[None]] = []
        try:
            while len(workers) < min(most, self._threads):
                workers.append(self._pool.submit(work))
        except RuntimeError as problem:
            log.warning("%d threads send instead of %d: %s", len(workers), min(most, self._threads), problem)
        return workers

    def close(self) -> None:
        """Nothing new begins; threads end with their calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _by_lane(messages: Sequence[Placed]) -> Sequence[Sequence[int]]:
    """Places in the batch, those of one lane together."""
    lanes: dict[object, list[int]] = {}
    for index, placed in enumerate(messages):
        lane = placed.message.lane
        lanes.setdefault(index if lane is None else (placed.message.topic, lane), []).append(index)
    return list(lanes.values())
