"""How much may be in flight at one broker: few messages at first, more while it keeps up; and never too many bytes."""

import threading
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Final

from outbox.clock import monotonic

#: Halves in flight at one broker; a cold broker answers "busy" when hundreds arrive at once.
CAP: Final = 512
FIRST: Final = 32
LEAST: Final = 8
#: Bytes of bodies in flight at one broker, of all threads together; one that is larger goes alone.
BYTES: Final = 16 * 1024 * 1024


class Window:
    """Places for messages in flight; doubles after answers that are fine, halves after "busy"."""

    def __init__(self, cap: int = CAP, first: int = FIRST, most_bytes: int = BYTES) -> None:
        self._cap = cap
        self._limit = min(first, cap)
        self._taken = 0
        self._most_bytes = most_bytes
        self._bytes = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """The places there are now."""
        return self._limit

    def take(self, sizes: Sequence[int], until: float) -> int:
        """Takes places for the first of messages of these sizes, waiting for a fair share of them.

        0: none until the moment ``until``. Half of the bytes at most, so that other threads get on.
        """
        with self._changed:
            while True:
                granted = self._granted(sizes)
                if granted:
                    self._taken += granted
                    self._bytes += sum(sizes[:granted])
                    return granted
                if not self._changed.wait(until - monotonic()) and monotonic() >= until:
                    return 0

    def give_back(self, sizes: Sequence[int], *, busy: bool) -> None:
        """Returns the places of messages of these sizes and tells whether the broker was busy."""
        places = len(sizes)
        with self._changed:
            self._taken -= places
            self._bytes -= sum(sizes)
            if busy:
                self._limit = max(LEAST, self._limit // 2)
            elif places >= self._limit // 2:
                self._limit = min(self._cap, self._limit * 2)
            self._changed.notify_all()

    def _granted(self, sizes: Sequence[int]) -> int:
        free = self._limit - self._taken
        if free < min(len(sizes), max(1, self._limit // 4)):
            return 0
        room = min(self._most_bytes - self._bytes, self._most_bytes // 2)
        wanted = sizes[:free]
        if sum(wanted) <= room:
            return len(wanted)
        fitting = sum(1 for _ in takewhile(lambda size: size <= room, accumulate(wanted)))
        return fitting or int(not self._taken)
