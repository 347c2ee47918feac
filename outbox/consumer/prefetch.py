"""The bounded queue between the receiver and the workers."""

import threading
from collections import deque

from outbox.consumer.held import Held


class Prefetch:
    """Deliveries that wait for a worker; bounded by count and by bytes of their bodies."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: deque[Held] = deque()
        self._bytes = 0
        self._closed = False
        lock = threading.Lock()
        # Two conditions, so that each change wakes those alone who wait for it, not a whole pool of workers.
        self._filled = threading.Condition(lock)
        self._drained = threading.Condition(lock)

    def room(self, timeout: float) -> int:
        """How many more may come, waiting up to ``timeout`` seconds for the first; 0: none, or closed.

        A batch may overshoot the bytes, since nobody knows sizes before reception; the next one waits for it.
        """
        with self._drained:
            self._drained.wait_for(lambda: self._closed or self._room() > 0, timeout)
            return 0 if self._closed else self._room()

    def put(self, held: list[Held]) -> None:
        """Adds what was received."""
        with self._filled:
            self._waiting.extend(held)
            self._bytes += sum(len(each.delivery.body) for each in held)
            self._filled.notify(len(held))

    def take(self, most: int = 1) -> list[Held]:
        """The oldest ones that are there, up to ``most``, waiting for the first; none: closed."""
        with self._filled:
            self._filled.wait_for(lambda: self._closed or bool(self._waiting))
            if self._closed:
                return []
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._bytes -= sum(len(each.delivery.body) for each in taken)
            self._drained.notify()
            return taken

    def close(self) -> list[Held]:
        """Wakes everybody for good; what was waiting."""
        with self._filled:
            self._closed = True
            rest, self._waiting = list(self._waiting), deque()
            self._filled.notify_all()
            self._drained.notify_all()
            return rest

    def _room(self) -> int:
        return self._most - len(self._waiting) if self._bytes < self._most_bytes else 0
