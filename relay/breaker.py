"""The breaker: while the broker is away nothing is claimed; a ping, then a single row, find out whether it is back."""

import threading
from collections.abc import Callable

from relay.timing import Pause, spread


class Breaker:
    """Thread-safe. Closed: passes run in full. Open: nothing is claimed until the pause is over and the broker answers
    a ping. Half open: passes of one row, until the broker takes one, or is found away again.

    The ping keeps the rows' order and their counters out of an outage: none is claimed in vain while nobody answers.
    This breaker is about all brokers; what becomes of one of several is the transport's affair, which sends to others.
    """

    def __init__(
        self,
        first: float,
        most: float,
        now: Callable[[], float],
        reachable: Callable[[], bool] = lambda: True,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Pauses grow from ``first`` to ``most`` seconds, each spread by ``jitter()`` in [-1, 1]."""
        self._pause = Pause(first, most)
        self._now = now
        self._reachable = reachable
        self._jitter = jitter
        self._until: float | None = None
        self._half_open = False
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def closed(self) -> bool:
        """Whether the broker counts as reachable."""
        return self._until is None

    def half_open(self) -> bool:
        """Whether the broker has answered a ping since it was away, and not yet taken a row."""
        return self._half_open

    def remaining(self) -> float:
        """Seconds until the broker is asked again; 0 if rows may be claimed, or it may be asked."""
        until = self._until
        return 0.0 if until is None else max(0.0, until - self._now())

    def admit(self) -> float:
        """Seconds until rows may be claimed; 0: now. Asks the broker where the pause is over."""
        with self._asking:
            waiting = 0.0 if self._half_open else self.remaining()
            if self.closed() or self._half_open or (not waiting and self._is_back()):
                return 0.0
            return waiting or self.outage()

    def outage(self) -> float:
        """The broker took no part in a pass; the pause in seconds, which repeats within it do not lengthen."""
        with self._lock:
            if self._until is None or self._now() >= self._until:
                self._until = self._now() + spread(self._pause.grow(), self._jitter())
            self._half_open = False
            return self._until - self._now()

    def success(self) -> bool:
        """The broker took a message; whether it counted as away until now."""
        with self._lock:
            was_away = self._until is not None
            self._until = None
            self._half_open = False
            self._pause.reset()
            return was_away

    def _is_back(self) -> bool:
        """A pass that was under way may have ended the outage while the ping was."""
        answers = self._reachable()
        with self._lock:
            self._half_open = answers and self._until is not None
        return answers
