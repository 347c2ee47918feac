"""What the broker is told: one outcome, one answer."""

import logging
from collections.abc import Sequence
from typing import Literal

from outbox import faults
from outbox.brokers.source import Delivery, Source
from outbox.consumer.held import Held
from outbox.consumer.outcome import Duplicate, Filtered, InProgress, NoKey, Outcome, Park, Processed, Retry
from outbox.consumer.schedule import delay_after, is_exhausted
from outbox.consumer.strategy import Strategy

log = logging.getLogger(__name__)

AfterRetries = Literal["dead-letter", "park"]


class Settlement:
    """Turns outcomes into answers; a delivery is acknowledged only when its outcome is durable."""

    def __init__(
        self,
        source: Source,
        strategy: Strategy,
        retry_delays: Sequence[float],
        *,
        after_retries: AfterRetries = "dead-letter",
    ) -> None:
        self._source = source
        self._strategy = strategy
        self._delays = retry_delays
        self._give_up = self._park if after_retries == "park" else self._bury

    def settle(self, held: Held, outcome: Outcome) -> None:
        """Tells the broker; raises where a message that must be parked cannot be stored."""
        faults.point("consumer.before_acknowledge")
        match outcome:
            case Processed() | Duplicate() | Filtered():
                self._log(logging.DEBUG, held, type(outcome).__name__.lower())
                held.answer("acknowledgement", self._source.acknowledge)
            case InProgress(remaining):
                self._later(held, "another owner has its key", remaining)
            case Retry(reason) if is_exhausted(held.delivery.attempt, self._delays):
                self._give_up(held, f"after {held.delivery.attempt} attempts: {reason}")
            case Retry(reason):
                self._later(held, reason, 0.0)
            case Park(reason) | NoKey(reason):
                self._park(held, reason)

    def give_back(self, held: Held) -> None:
        """Returns a delivery that was not worked on, for others to take at once."""
        held.answer("return", lambda delivery: self._source.later(delivery, 0.0))

    def _later(self, held: Held, reason: str, at_least: float) -> None:
        delay = max(at_least, delay_after(held.delivery.attempt, self._delays))
        self._log(logging.WARNING, held, "comes again", f" in {delay:g} s: {reason}")
        held.answer("return", lambda delivery: self._source.later(delivery, delay))

    def _bury(self, held: Held, reason: str) -> None:
        self._log(logging.ERROR, held, "goes to the dead letters", f": {reason}")
        held.answer("dead letter", lambda delivery: self._source.bury(delivery, reason))

    def _park(self, held: Held, reason: str) -> None:
        if not self._strategy.park(held.delivery, reason):
            self._bury(held, reason)
            return
        self._log(logging.ERROR, held, "parked", f": {reason}")
        held.answer("acknowledgement", self._source.acknowledge)

    @staticmethod
    def _log(level: int, held: Held, what: str, why: str = "") -> None:
        it: Delivery = held.delivery
        # The key is what `outbox list --key` and the inbox know the fact by.
        which = (it.unique_id, it.topic, " ".join(it.keys) or "-", it.attempt)
        kind = {"kind": f"messages of {it.topic}: {what}"}
        log.log(level, "message %s of %s, key %s, attempt %d: %s%s", *which, what, why, extra=kind)
