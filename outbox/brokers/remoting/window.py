"""How many messages may be in flight at one broker: few at first, more while it keeps up."""

import threading
from typing import Final

from outbox.clock import monotonic

#: Halves in flight at one broker; a cold broker answers "busy" when hundreds arrive at once.
CAP: Final = 512
FIRST: Final = 32
LEAST: Final = 8


class Window:
    """Places for messages in flight; doubles after answers that are fine, halves after "busy"."""

    def __init__(self, cap: int = CAP, first: int = FIRST) -> None:
        self._cap = cap
        self._limit = min(first, cap)
        self._taken = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """The places there are now."""
        return self._limit

    def take(self, wanted: int, until: float) -> int:
        """Takes up to ``wanted`` places, waiting for a fair share of them; 0: none until the moment ``until``."""
        with self._changed:
            while True:
                free = self._limit - self._taken
                if free >= min(wanted, max(1, self._limit // 4)):
                    granted = min(wanted, free)
                    self._taken += granted
                    return granted
                if not self._changed.wait(until - monotonic()) and monotonic() >= until:
                    return 0

    def give_back(self, places: int, *, busy: bool) -> None:
        """Returns places and tells whether the broker was busy."""
        with self._changed:
            self._taken -= places
            if busy:
                self._limit = max(LEAST, self._limit // 2)
            elif places >= self._limit // 2:
                self._limit = min(self._cap, self._limit * 2)
            self._changed.notify_all()
