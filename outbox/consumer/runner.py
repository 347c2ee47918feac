"""The runner: receives, has the strategy process, tells the broker; knows no SQL."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from outbox import faults
from outbox.brokers.base import BrokerClosed
from outbox.brokers.source import Source
from outbox.clock import monotonic
from outbox.consumer.failures import said
from outbox.consumer.held import Held, Holdings
from outbox.consumer.outcome import Outcome, Retry
from outbox.consumer.prefetch import Prefetch
from outbox.consumer.schedule import RETRY_DELAYS
from outbox.consumer.settlement import AfterRetries, Settlement
from outbox.consumer.strategy import BatchStrategy, Strategy

log = logging.getLogger(__name__)

#: What one POP request may ask for.
_BATCH = 32
#: So often in a row a message may lose the connection of a store that was there: then it is charged a retry.
_LOSSES = 3


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Times in seconds."""

    threads: int = 4
    #: What may wait for a worker in this process.
    queue_messages: int = 64
    queue_bytes: int = 16 * 1024 * 1024
    #: For how long a delivery is ours; extended once a third of it is gone. The source must use the same.
    invisible: float = 60.0
    retry_delays: Sequence[float] = RETRY_DELAYS
    #: What becomes of a message that has failed once more than there are delays.
    after_retries: AfterRetries = "dead-letter"
    #: One wait for messages; bounds how long a stop goes unnoticed.
    receive_wait: float = 1.0
    #: Rests while the store is away: doubling from the first to the longest.
    outage_rest: float = 1.0
    outage_rest_most: float = 30.0
    #: How long running handlers may take to finish after a stop.
    drain_timeout: float = 30.0


class Runner:
    """Feeds one strategy from one source until it is told to stop."""

    def __init__(self, source: Source, strategy: Strategy, settings: RunnerSettings | None = None) -> None:
        self._settings = settings or RunnerSettings()
        self._source = source
        self._strategy = strategy
        self._settlement = Settlement(
            source, strategy, self._settings.retry_delays, after_retries=self._settings.after_retries
        )
        self._holdings = Holdings(source, self._settings.invisible)
        self._batching = strategy if isinstance(strategy, BatchStrategy) else None
        self._batch = self._batching.batch if self._batching else 1
        # A batch that the queue cannot hold would never be full.
        most = max(self._settings.queue_messages, 2 * self._batch)
        self._prefetch = Prefetch(most, self._settings.queue_bytes, _BATCH)
        self._stop = threading.Event()
        self._outage = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Works until ``stop`` is set; then running handlers finish, and what waits is given back at once.

        Returns early, with a log entry, when handlers outlast the drain time-out: their messages come again.
        """
        self._stop = stop
        workers = [
            threading.Thread(target=self._work, name=f"outbox-consumer-{number}", daemon=True)
            for number in range(self._settings.threads)
        ]
        with self._holdings.renewed():
            for worker in workers:
                worker.start()
            try:
                self._receive_until_stopped()
            finally:
                # An unexpected end of reception ends everything: half a runner would look alive.
                stop.set()
                self._drain(workers)

    def _receive_until_stopped(self) -> None:
        while not self._stop.is_set():
            try:
                self._receive()
            except BrokerClosed:
                raise
            except Exception:
                log.exception("nothing received; trying again")
                self._stop.wait(self._settings.outage_rest)

    def _receive(self) -> None:
        if self._outage.is_set():
            # Those who hold a message try the store; more messages would only wait for them.
            self._stop.wait(self._settings.receive_wait)
            return
        room = self._prefetch.room(self._settings.receive_wait)
        if room and (received := self._source.receive(min(room, _BATCH), self._settings.receive_wait)):
            faults.point("consumer.after_receive")
            self._prefetch.put(self._holdings.add(received))

    def _work(self) -> None:
        while taken := self._prefetch.take(self._batch):
            try:
                self._process(taken)
            except Exception:
                log.exception("message %s: no answer was given, it comes again", taken[0].delivery.unique_id)
            finally:
                # Answered, or lost: if the store is still away, the next message finds out.
                self._outage.clear()
                for held in taken:
                    self._holdings.drop(held)
                self._prefetch.finish(taken)

    def _process(self, waiting: Sequence[Held]) -> None:
        rest = self._settings.outage_rest
        while not self._stop.is_set() and (waiting := _ours(waiting)):
            outcomes = self._outcomes(waiting)
            waiting = [
                held for held, outcome in zip(waiting, outcomes, strict=True) if not self._settled(held, outcome)
            ]
            if not waiting:
                return
            # The messages stay with us, renewed, so that an outage does not use up their retries.
            self._outage.set()
            self._stop.wait(rest)
            rest = min(2 * rest, self._settings.outage_rest_most)
        for held in _ours(waiting):
            self._settlement.give_back(held)

    def _settled(self, held: Held, outcome: Outcome) -> bool:
        """Tells the broker; False: the store is away, nothing was answered."""
        if isinstance(outcome, Retry) and outcome.outage:
            if held.lost_its_store(outcome.begun) < _LOSSES:
                log.warning("the store is away, message %s waits: %s", held.delivery.unique_id, outcome.reason)
                return False
            # One that ends the connection each time, by its size or its duration, would pass for an outage for ever.
            outcome = Retry(outcome.reason)
        try:
            self._settlement.settle(held, outcome)
        except Exception:
            log.exception("message %s: cannot be parked, it waits", held.delivery.unique_id)
            return False
        return True

    def _outcomes(self, taken: Sequence[Held]) -> list[Outcome]:
        try:
            if self._batching:
                return self._batching.process_batch([held.delivery for held in taken])
            return [self._strategy.process(held.delivery) for held in taken]
        except BaseException as error:  # a handler's SystemExit would end the thread, and nobody would notice
            log.exception("message %s: the strategy failed", taken[0].delivery.unique_id)
            return [Retry(said(error)) for _ in taken]

    def _drain(self, workers: Sequence[threading.Thread]) -> None:
        for held in self._prefetch.close():
            self._settlement.give_back(held)
            self._holdings.drop(held)
        end = monotonic() + self._settings.drain_timeout
        for worker in workers:
            worker.join(max(0.0, end - monotonic()))
        if late := [worker.name for worker in workers if worker.is_alive()]:
            log.error("handlers still run after the drain time-out (%s): their messages come again", ", ".join(late))


def _ours(waiting: Sequence[Held]) -> list[Held]:
    """Those that nobody else can have received."""
    for held in waiting:
        if not held.is_ours:
            log.warning("message %s: it was not ours any more, it comes again", held.delivery.unique_id)
    return [held for held in waiting if held.is_ours]
