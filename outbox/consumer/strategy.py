"""The port between the runner, which knows the broker, and the strategies, which know their store."""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from outbox.brokers.source import Delivery
from outbox.consumer.outcome import Outcome


class Strategy(Protocol):
    """A consumer with its handlers, its way of telling repeats, and its store. Safe to use from several threads."""

    @property
    def topics(self) -> Collection[str]:
        """What to receive."""
        ...

    @property
    def group(self) -> str:
        """The consumer group at the broker."""
        ...

    def check(self) -> None:
        """Raises an ``OutboxError`` that names the remedy if the consumer cannot work as it is set up."""
        ...

    def process(self, delivery: Delivery) -> Outcome:
        """Runs the handler unless its effect is durable already; never raises for what handler or store do."""
        ...

    def park(self, delivery: Delivery, reason: str) -> bool:
        """Stores the delivery durably for an operator; False: no place for it (it goes to the dead-letter topic).

        Parking the same delivery again adds nothing. Raises where the store fails; the delivery is then kept.
        """
        ...

    def purge(self) -> int:
        """Forgets one batch of effects that are older than the retention; how many."""
        ...

    def close(self) -> None:
        """Frees the store's connections that the strategy opened itself."""
        ...


@runtime_checkable
class BatchStrategy(Strategy, Protocol):
    """A strategy that takes many deliveries at once."""

    @property
    def batch(self) -> int:
        """How many at most."""
        ...

    def process_batch(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """One outcome for each delivery, in order."""
        ...
