"""The breaker: while the broker is away, passes stop, and one row at a time probes whether it is back."""

import threading
from collections.abc import Callable

from relay.timing import Pause


class Breaker:
    """Thread-safe. Closed: passes run in full. Open: nothing is claimed until the pause is over, then a probe."""

    def __init__(self, first: float, most: float, now: Callable[[], float]) -> None:
        self._pause = Pause(first, most)
        self._now = now
        self._until: float | None = None
        self._lock = threading.Lock()

    def closed(self) -> bool:
        """Whether the broker counts as reachable."""
        return self._until is None

    def remaining(self) -> float:
        """Seconds until the next probe; 0 if rows may be claimed."""
        until = self._until
        return 0.0 if until is None else max(0.0, until - self._now())

    def outage(self) -> float:
        """The broker took no part in a pass; the pause in seconds, which repeats within it do not lengthen."""
        with self._lock:
            if self._until is None or self._now() >= self._until:
                self._until = self._now() + self._pause.grow()
            return self._until - self._now()

    def success(self) -> None:
        """The broker answered."""
        with self._lock:
            self._until = None
            self._pause.reset()
