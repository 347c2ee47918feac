"""Between the client's callback threads, which wait with a message each, and those who receive and answer."""

import itertools
import threading
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

from outbox.brokers.native.places import Place
from outbox.brokers.source import Delivery
from outbox.clock import monotonic


class Ending(Enum):
    """What became of a message that a callback thread waited with."""

    #: Nothing more is owed for it.
    DONE = "done"
    #: The client has to send it back, with all that it pulled in the same batch.
    FAILED = "failed"
    #: Nobody answered in time, or nobody will: it is to be given back.
    LEFT = "left"


@dataclass(slots=True, eq=False)
class _Slot:
    """One message and the thread that waits with it."""

    number: int
    delivery: Delivery
    place: Place
    #: Wakes the waiting thread; its lock is the handover's.
    changed: threading.Condition
    #: Changes with every renewal, so that an old receipt has no effect.
    renewals: int = 0
    #: None: nobody has received it, it waits without limit.
    until: float | None = None
    #: Somebody is telling the broker: neither time nor closing takes it away now.
    claimed: bool = False
    ending: Ending | None = None

    @property
    def receipt(self) -> str:
        """Good for one answer."""
        return f"{self.number}.{self.renewals}"

    def extend(self, invisible: float) -> Delivery:
        """The delivery as it is received, or renewed, now."""
        self.until = monotonic() + invisible
        self.changed.notify_all()
        return replace(self.delivery, receipt=self.receipt, invisible_until=self.until)

    def left(self) -> float | None:
        """Seconds until it expires; None: it does not."""
        return None if self.until is None or self.claimed else self.until - monotonic()


class Handover:
    """As many messages as the client has callback threads; safe to use from all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._numbers = itertools.count(1)
        self._slots: dict[str, _Slot] = {}
        self._ready: deque[_Slot] = deque()
        self._closing = threading.Event()

    def offer(self, delivery: Delivery, place: Place) -> Ending:
        """Waits with a message until it is answered, or expired, or everything closes."""
        with self._lock:
            slot = _Slot(next(self._numbers), delivery, place, threading.Condition(self._lock))
            self._ready.append(slot)
            self._slots[slot.receipt] = slot
            self._arrived.notify()
            while slot.ending is None and not self._is_over(slot):
                slot.changed.wait(slot.left())
            self._slots.pop(slot.receipt, None)
            return slot.ending or Ending.LEFT

    def take(self, limit: int, wait: float, invisible: float) -> list[Delivery]:
        """Up to ``limit`` messages, waiting up to ``wait`` seconds for the first; their time counts from now."""
        with self._lock:
            self._arrived.wait_for(lambda: self._ready or self._closing.is_set(), max(0.0, wait))
            if self._closing.is_set():
                return []
            return [self._ready.popleft().extend(invisible) for _ in range(min(limit, len(self._ready)))]

    def claim(self, delivery: Delivery) -> Place | None:
        """The right to end a delivery, once; None: it is not ours any more. ``finish`` must follow."""
        with self._lock:
            slot = self._ours(delivery)
            if slot is None:
                return None
            slot.claimed = True
            return slot.place

    def finish(self, delivery: Delivery, ending: Ending) -> None:
        """Ends a delivery that was claimed."""
        with self._lock:
            slot = self._slots[delivery.receipt]
            slot.ending = ending
            slot.changed.notify_all()

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """The delivery with another ``invisible`` seconds; None: it is not ours any more."""
        with self._lock:
            slot = self._ours(delivery)
            if slot is None:
                return None
            del self._slots[slot.receipt]
            slot.renewals += 1
            self._slots[slot.receipt] = slot
            return slot.extend(invisible)

    def rest(self, seconds: float) -> bool:
        """Waits; whether everything closes."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """Nothing is handed over any more; what is not being answered is left."""
        with self._lock:
            self._closing.set()
            self._ready.clear()
            self._arrived.notify_all()
            for slot in self._slots.values():
                slot.changed.notify_all()

    def _ours(self, delivery: Delivery) -> _Slot | None:
        """The slot of a delivery that can still be answered."""
        slot = self._slots.get(delivery.receipt)
        if slot is None or slot.until is None or slot.claimed or self._is_over(slot):
            return None
        return slot

    def _is_over(self, slot: _Slot) -> bool:
        if slot.claimed:
            return False
        return self._closing.is_set() or (slot.until is not None and monotonic() >= slot.until)
