"""A memory of committed effects in front of a strategy: it spares the store, it never decides.

A memory only ever says "that effect is durable". It is filled after the strategy's own commit, best effort, and a "no"
or an error of it means nothing: the strategy finds out. So it can neither lose a message nor let one through twice.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from outbox.brokers.source import Delivery
from outbox.consumer.claims import Claim
from outbox.consumer.keys import Extractor
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, Outcome, Processed
from outbox.consumer.strategy import Strategy
from outbox.errors import SettingsError

H = TypeVar("H", bound=Callable[..., object])


class Executing(Strategy, Protocol):
    """A strategy that another one can stand in front of."""

    @property
    def consumer(self) -> str:
        """The name under which effects are remembered."""
        ...

    @property
    def retention(self) -> float:
        """Seconds for which they are."""
        ...

    def handler(
        self, *, topic: str, tag: str | None = None, key: Extractor | None = None, message_id: bool = False
    ) -> Callable[[H], H]:
        """Registers a function for a topic."""
        ...

    def admit(self, delivery: Delivery) -> tuple[Message, Callable[..., Any]] | Outcome:
        """The message and its handler, or why there is nothing to execute."""
        ...

    def execute(self, message: Message, handler: Callable[..., Any]) -> Outcome:
        """Runs the handler once per key."""
        ...

    def forget(self, key: str) -> bool:
        """Has the effect of a key happen again when its message is replayed; whether there was one."""
        ...


class Memory(Protocol):
    """Remembers effects that are durable. Neither call raises for what the store behind it does."""

    def knows(self, claim: Claim) -> bool:
        """Whether this very message's effect is known to be durable; False: ask the strategy."""
        ...

    def remember(self, claim: Claim) -> None:
        """The effect is durable."""
        ...


@dataclass(slots=True)
class Counters:
    """How much a memory spares; counted since the start of the process."""

    #: The memory knew the effect.
    hits: int = 0
    #: It did not, and the strategy was asked.
    misses: int = 0
    #: The memory's store did not answer, or was left alone since it had not.
    errors: int = 0
    #: The strategy knew what the memory did not: unique-key conflicts in the database.
    conflicts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def count(self, name: str) -> None:
        """One more of the figure; safe from several threads."""
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)


class Remembering:
    """A strategy with a memory in front; everything else is the strategy's own."""

    def __init__(self, inner: Executing, memory: Memory, counters: Counters, ttl: float) -> None:
        if ttl > inner.retention:
            raise SettingsError(
                f"ttl: {ttl:.0f} s is longer than the {inner.retention:.0f} s for which the strategy behind remembers; "
                "a message that is replayed in between would be lost: lower it"
            )
        self._inner = inner
        self._memory = memory
        self.counters = counters

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have handlers."""
        return tuple(self._inner.topics)

    @property
    def group(self) -> str:
        """The consumer group at the broker."""
        return self._inner.group

    @property
    def consumer(self) -> str:
        """The name under which effects are remembered."""
        return self._inner.consumer

    @property
    def retention(self) -> float:
        """As the strategy behind."""
        return self._inner.retention

    def handler(
        self, *, topic: str, tag: str | None = None, key: Extractor | None = None, message_id: bool = False
    ) -> Callable[[H], H]:
        """Registers a function with the strategy behind."""
        return self._inner.handler(topic=topic, tag=tag, key=key, message_id=message_id)

    def check(self) -> None:
        """Whether the strategy behind can work; a memory may be away."""
        self._inner.check()

    def process(self, delivery: Delivery) -> Outcome:
        """Runs the delivery's handler, unless its effect is durable already."""
        admitted = self.admit(delivery)
        return self.execute(*admitted) if isinstance(admitted, tuple) else admitted

    def admit(self, delivery: Delivery) -> tuple[Message, Callable[..., Any]] | Outcome:
        """As the strategy behind does."""
        return self._inner.admit(delivery)

    def execute(self, message: Message, handler: Callable[..., Any]) -> Outcome:
        """Asks the memory, then the strategy, then fills the memory."""
        return self._execute(Claim.of(self.consumer, message), message, handler)

    def _execute(self, claim: Claim, message: Message, handler: Callable[..., Any]) -> Outcome:
        if self._memory.knows(claim):
            self.counters.count("hits")
            return Duplicate()
        self.counters.count("misses")
        outcome = self._inner.execute(message, handler)
        if isinstance(outcome, Processed | Duplicate):
            self._memory.remember(claim)
        if isinstance(outcome, Duplicate):
            self.counters.count("conflicts")
        return outcome

    def park(self, delivery: Delivery, reason: str) -> bool:
        """As the strategy behind does."""
        return self._inner.park(delivery, reason)

    def purge(self) -> int:
        """Forgets one batch of old effects of the strategy behind."""
        return self._inner.purge()

    def forget(self, key: str) -> bool:
        """As the strategy behind does."""
        return self._inner.forget(key)

    def close(self) -> None:
        """Closes the strategy behind."""
        self._inner.close()
