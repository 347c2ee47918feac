"""The halves that this process sent and has not ended: what the proxy needs to end them, for as long as it knows them.

The proxy keeps where a half lies for 30 s (``transactionDataExpireMillis``) and forgets it with the first end; after
that only the answer to a check ends the half. So a half is ended here once at most, and forgotten with that.
"""

import threading
from dataclasses import dataclass
from typing import Final

from outbox.brokers.base import Half, Outgoing
from outbox.brokers.grpc.channels import Channel
from outbox.clock import monotonic

#: Seconds; longer than the proxy's 30, whose answer then says that it has forgotten.
_KEPT: Final = 60.0
_NAME_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class OpenHalf:
    """Where a half is ended: over the channel that it was sent on, since another proxy may not know it."""

    channel: Channel
    since: float


class OpenHalves:
    """Halves by their ids, oldest first; safe to use from several threads."""

    def __init__(self) -> None:
        self._halves: dict[str, OpenHalf] = {}
        self._lock = threading.Lock()

    def add(self, message: Outgoing, channel: Channel, transaction_id: str) -> Half:
        """Remembers a half that the proxy stored; forgets those that the proxy has forgotten."""
        now = monotonic()
        with self._lock:
            self._halves[message.unique_id] = OpenHalf(channel, now)
            while (oldest := next(iter(self._halves.items())))[1].since < now - _KEPT:
                del self._halves[oldest[0]]
        return half_of(message.topic, message.unique_id, channel.name, transaction_id)

    def take(self, half: Half) -> OpenHalf | None:
        """The half, once; None: another process sent it, it was ended, or it is too old."""
        with self._lock:
            return self._halves.pop(half.half_id, None)


def half_of(topic: str, half_id: str, proxy: str, transaction_id: str) -> Half:
    """A half as the port names it. The proxy uses the topic as the producer group."""
    return Half(topic, half_id, proxy[:_NAME_MAX], transaction_id, topic)
