"""The bounded queue between the receiver and the workers."""

import threading
from collections import deque
from collections.abc import Iterable

from outbox.consumer.held import Held


class Prefetch:
    """Deliveries that wait for a worker; bounded by count and by bytes of their bodies.

    Of each lane one delivery is out at a time, in the order in which they came; its followers wait behind it, and hold
    up nobody else.
    """

    def __init__(self, most: int, most_bytes: int, batch: int = 1) -> None:
        """``batch`` is what one request brings at most: less room than that is no reason to ask, while some wait."""
        self._most = most
        self._worth = max(1, min(batch, most // 2))
        self._most_bytes = most_bytes
        #: What may be taken: everything without a lane, and of each lane its head, unless that is out.
        self._waiting: deque[Held] = deque()
        #: The followers in each lane whose head waits or is out.
        self._behind: dict[str, deque[Held]] = {}
        self._count = 0
        self._bytes = 0
        self._closed = False
        lock = threading.Lock()
        # Two conditions, so that each change wakes those alone who wait for it, not a whole pool of workers.
        self._filled = threading.Condition(lock)
        self._drained = threading.Condition(lock)

    def room(self, timeout: float) -> int:
        """How many more may come, waiting up to ``timeout`` seconds for a batch's worth; 0: none, or closed.

        Asked at each place that becomes free, the broker would get a request for each message. A batch may overshoot
        the bytes, since nobody knows sizes before reception; the next one waits for it.
        """
        with self._drained:
            self._drained.wait_for(self._has_room, timeout)
            return 0 if self._closed else self._room()

    def put(self, held: list[Held]) -> None:
        """Adds what was received."""
        with self._filled:
            before = len(self._waiting)
            for each in held:
                self._line_up(each)
            self._count += len(held)
            self._bytes += _size(held)
            self._filled.notify(len(self._waiting) - before)

    def take(self, most: int = 1) -> list[Held]:
        """The oldest ones that may be worked on, up to ``most``, waiting for the first; none: closed."""
        with self._filled:
            self._filled.wait_for(lambda: self._closed or bool(self._waiting))
            if self._closed:
                return []
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._count -= len(taken)
            self._bytes -= _size(taken)
            if self._has_room():
                self._drained.notify()
            return taken

    def finish(self, taken: Iterable[Held]) -> None:
        """Lets the followers of what was taken, and is out no more, come."""
        lanes = [lane for held in taken if (lane := held.delivery.lane) is not None]
        if lanes:
            with self._filled:
                for lane in lanes:
                    self._follow(lane)

    def close(self) -> list[Held]:
        """Wakes everybody for good; what was waiting."""
        with self._filled:
            self._closed = True
            rest = [*self._waiting, *(held for behind in self._behind.values() for held in behind)]
            self._waiting, self._behind = deque(), {}
            self._filled.notify_all()
            self._drained.notify_all()
            return rest

    def _line_up(self, held: Held) -> None:
        lane = held.delivery.lane
        if lane is not None and lane in self._behind:
            self._behind[lane].append(held)
            return
        if lane is not None:
            self._behind[lane] = deque()
        self._waiting.append(held)

    def _follow(self, lane: str) -> None:
        if behind := self._behind.get(lane):
            self._waiting.append(behind.popleft())
            self._filled.notify()
        else:
            self._behind.pop(lane, None)

    def _has_room(self) -> bool:
        """Whether it is worth while to ask the broker."""
        return self._closed or self._room() >= (self._worth if self._waiting else 1)

    def _room(self) -> int:
        return self._most - self._count if self._bytes < self._most_bytes else 0


def _size(held: Iterable[Held]) -> int:
    return sum(len(each.delivery.body) for each in held)
