"""The receiving port: what the consumer runner asks of a transport."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from outbox.clock import monotonic


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a consumer receives it."""

    topic: str
    body: bytes
    #: The broker's UNIQ_KEY: survives redelivery, changes when the application sends again.
    unique_id: str
    #: KEYS, split at blanks as the broker splits them.
    keys: tuple[str, ...]
    tag: str | None
    properties: Mapping[str, str]
    #: From 1; counts every delivery of this message to this group that the broker knows of.
    attempt: int
    #: The transport's own; changes with every renewal. Opaque.
    receipt: str
    #: ``outbox.clock.monotonic`` seconds after which others may receive it: judge by this, never by an answer.
    invisible_until: float
    #: Seconds since 1970 by the producer's clock when the message was first sent; redeliveries keep it. None: unknown.
    born_at: float | None = None
    #: The queue that this delivery holds until it is acknowledged or buried; None: the group is not orderly.
    lane: str | None = None


def unexpired(ready: deque[Delivery], limit: int) -> list[Delivery]:
    """Takes up to ``limit`` deliveries that have not expired while they waited in ``ready``; drops those that have."""
    taken: list[Delivery] = []
    while ready and len(taken) < limit:
        delivery = ready.popleft()
        if monotonic() < delivery.invisible_until:
            taken.append(delivery)
    return taken


class Source(Protocol):
    """A consumer group's view of some topics: every delivery must be acknowledged, or comes again.

    The calls after ``receive`` return False where the broker did not confirm; the delivery then comes again.

    A source of an orderly group gives out one delivery of a lane at a time, in the lane's order: the next one comes
    once the last one was acknowledged or buried. What is given back, or expires, comes again before what is behind it.
    """

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, waiting up to ``wait`` seconds for the first; []: none, or an outage."""
        ...

    def acknowledge(self, delivery: Delivery) -> bool:
        """Takes the delivery off the group's queue for good."""
        ...

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Gives the delivery back; it comes again after about ``delay`` seconds, with ``attempt`` + 1."""
        ...

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """Extends the invisible time; the returned delivery replaces the old one. None: not ours any more."""
        ...

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Stores the delivery in the group's dead-letter topic, then acknowledges it."""
        ...

    def close(self) -> None:
        """Stops receiving; deliveries that are not acknowledged come again."""
        ...
