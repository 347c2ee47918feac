"""A loop's signs of life: what was heard of it last, and what it is in the middle of."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from outbox.clock import monotonic


class Life(StrEnum):
    """How a loop is."""

    ALIVE = "alive"
    #: Nothing was heard of it for longer than it may be silent.
    STALLED = "stalled"
    #: It died, and is started again after a pause.
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Sign:
    """What is known of a loop at one moment."""

    life: Life
    #: Seconds since it was last heard of; of work in hand: since the oldest began.
    silent: float
    #: How often it died.
    deaths: int
    #: What it died of last; "": nothing.
    error: str


class Pulse:
    """Thread-safe. A loop beats at each turn; work that comes and goes is ``busy`` while it lasts."""

    def __init__(self, patience: float, *, beats: bool = True, now: Callable[[], float] = monotonic) -> None:
        """``patience``: seconds of silence, or for one piece of work, that are too many; ``beats``: there is a loop."""
        self._patience = patience
        self._beats = beats
        self._now = now
        self._heard = now()
        self._busy: dict[object, float] = {}
        self._lock = threading.Lock()
        self._resting: Life | None = None
        self._deaths = 0
        self._error = ""

    def beat(self) -> None:
        """The loop is at work."""
        self._heard = self._now()
        self._resting = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Work that must not take longer than the patience."""
        token = object()
        with self._lock:
            self._busy[token] = self._now()
        try:
            yield
        finally:
            with self._lock:
                del self._busy[token]

    def died(self, error: str) -> None:
        """The loop ended although it should not have; whoever says so starts it again."""
        with self._lock:
            self._deaths += 1
        self._error = error
        self._resting = Life.RESTARTING

    def stop(self) -> None:
        """The loop ended because it was told to."""
        self._resting = Life.STOPPED

    def sign(self) -> Sign:
        """How the loop is now."""
        now = self._now()
        with self._lock:
            since = list(self._busy.values())
        if self._beats:
            since.append(self._heard)
        silent = now - min(since, default=now)
        life = self._resting or (Life.STALLED if silent > self._patience else Life.ALIVE)
        return Sign(life, silent, self._deaths, self._error)
