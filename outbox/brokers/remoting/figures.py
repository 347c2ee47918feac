"""What a broker says of its message store, asked for once however many look-ups wait for it."""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from outbox.brokers.base import Sought
from outbox.brokers.remoting.connections import Connections
from outbox.brokers.remoting.questions import runtime
from outbox.clock import monotonic

#: How far the clocks of broker and database may be apart before the start of a broker is mistaken for an earlier one.
_CLOCKS: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The figures of ``MessageStore`` that tell whether an absence proves anything."""

    #: Milliseconds; of the oldest message that is left; -1: the broker does not say (4.9, in its first megabytes).
    earliest: int
    #: Where the commit log ends.
    written: int
    #: Up to where consume queues and the index have been built.
    dispatched: int
    #: Milliseconds; when the broker was started.
    booted: int

    def goes_back_to(self, it: Sought) -> bool:
        """Whether the oldest message is older than the decision."""
        return 0 <= self.earliest <= it.since.timestamp() * 1000

    def proves(self, it: Sought) -> bool:
        """Whether an absence from the index needs no further proof: the broker has not been down since the decision."""
        return self.goes_back_to(it) and self.booted <= (it.since - _CLOCKS).timestamp() * 1000


class Figures:
    """Asks brokers for their figures (``BrokerRuntimeInfo``, which costs a busy broker up to a second)."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._last: dict[str, tuple[float, StoreFigures]] = {}

    def now(self, address: str, timeout: float) -> StoreFigures:
        """Figures that were asked for after this call began, by this thread or by another one that did the same.

        Raises ``RemotingError`` where the broker does not say, ``KeyError`` or ``ValueError`` where it says nonsense.
        """
        called = monotonic()
        with self._locks[address]:
            asked, figures = self._last.get(address, (called - 1, None))
            if figures is None or asked < called:
                asked = monotonic()
                figures = _read(runtime(self._connections, address, max(0.0, timeout - (asked - called))))
                self._last[address] = (asked, figures)
            return figures


def _read(table: Mapping[str, str]) -> StoreFigures:
    written = int(table["commitLogMaxOffset"])
    dispatched = written - int(table["dispatchBehindBytes"])
    return StoreFigures(int(table["earliestMessageTimeStamp"]), written, dispatched, int(table["bootTimestamp"]))
