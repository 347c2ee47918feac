"""A breaker for each broker: one that is away, silent or full gets no message that can go elsewhere, and slows none.

Closed: messages go there. Open, after a failure: none does; once a pause is over the broker is pinged beside the
sending, so that no batch waits for a host that says nothing. Half open, after an answer: one message at a time, until
one is stored (closed) or not (open again, for longer): a broker whose disk is full answers pings as well.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds from a failure to the next ping: at first, and at most.
PAUSE: Final = 1.0
PAUSE_MOST: Final = 10.0
#: Seconds after which a message that was to find out, and of which nothing was heard, is replaced by another.
_PROBE: Final = 5.0


@dataclass(slots=True)
class _Breaker:
    """One that is not closed."""

    until: float
    pause: float
    pinging: bool = False
    half_open: bool = False


class Breakers:
    """Breakers by address; safe to use from several threads."""

    def __init__(self, ping: Callable[[str], bool], pool: Executor) -> None:
        """``ping`` is called in a thread of ``pool`` and must return."""
        self._ping = ping
        self._pool = pool
        self._open: dict[str, _Breaker] = {}
        self._lock = threading.Lock()

    def all_closed(self) -> bool:
        """Whether no broker has failed lately."""
        return not self._open

    def closed(self, address: str) -> bool:
        """Whether messages may go there; has the broker pinged where it is time."""
        breaker = self._open.get(address)
        if breaker is None:
            return True
        with self._lock:
            due = not (breaker.half_open or breaker.pinging) and monotonic() >= breaker.until
            breaker.pinging = breaker.pinging or due
        if due:
            self._start_ping(address, breaker)
        return False

    def probes(self, address: str) -> bool:
        """Whether one message may go there to find out; then no other may for a while."""
        breaker = self._open.get(address)
        now = monotonic()
        with self._lock:
            if breaker is None or not breaker.half_open or now < breaker.until:
                return False
            breaker.until = now + _PROBE
            return True

    def failed(self, address: str) -> None:
        """The broker is away, silent, or takes nothing. Repeats within a pause do not lengthen it."""
        with self._lock:
            now = monotonic()
            breaker = self._open.get(address)
            if breaker is None:
                self._open[address] = _Breaker(now + PAUSE, PAUSE)
            elif breaker.half_open or now >= breaker.until:
                self._lengthen(breaker)

    def answered(self, address: str) -> None:
        """The broker stores messages."""
        if self._open and self._open.pop(address, None) is not None:
            log.warning("%s takes messages again", address)

    @staticmethod
    def _lengthen(breaker: _Breaker) -> None:
        breaker.pause = min(PAUSE_MOST, 2 * breaker.pause)
        breaker.until = monotonic() + breaker.pause
        breaker.half_open = False

    def _start_ping(self, address: str, breaker: _Breaker) -> None:
        try:
            self._pool.submit(self._find_out, address, breaker)
        except RuntimeError as problem:  # the transport was closed, or the system has no thread left
            log.debug("%s is not pinged now: %s", address, problem)
            with self._lock:
                breaker.pinging = False
                breaker.until = monotonic() + breaker.pause

    def _find_out(self, address: str, breaker: _Breaker) -> None:
        """Whatever becomes of the ping, it is over then: or the broker would never be asked again."""
        answers = False
        try:
            answers = self._ping(address)
        except Exception:
            log.exception("%s cannot be pinged", address)
        with self._lock:
            breaker.pinging = False
            breaker.half_open = answers
            if not answers:
                self._lengthen(breaker)
