"""Loops that outlive their faults: one that dies is started again, after a pause that grows, and that is seen."""

import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from outbox.clock import monotonic
from outbox.errors import OutboxError
from outbox.health.pulse import Pulse
from outbox.health.vitals import Vitals

_LOG = logging.getLogger(__name__)

#: Seconds from a death to the next start: at first, and at most.
PAUSE: Final = 0.5
PAUSE_MOST: Final = 30.0

#: A loop's body: it beats, and returns once it was told to stop.
Body = Callable[[Pulse], object]


class Supervisor:
    """Runs loops until ``stop``; telling each loop itself to stop is the caller's part."""

    def __init__(
        self, vitals: Vitals, log: logging.Logger = _LOG, *, pause: float = PAUSE, pause_most: float = PAUSE_MOST
    ) -> None:
        self._vitals = vitals
        self._log = log
        self._pause = pause
        self._pause_most = pause_most
        self._stopping = threading.Event()

    def start(self, name: str, body: Body, patience: float) -> threading.Thread:
        """Runs a loop in a daemon thread of its own."""
        thread = threading.Thread(target=self.run, args=(name, body, patience), name=f"outbox-{name}", daemon=True)
        thread.start()
        return thread

    def run(self, name: str, body: Body, patience: float = math.inf) -> None:
        """Runs a loop in this thread until it returns after ``stop``; ``patience``: seconds it may be silent, where its
        pulse is not made yet."""
        pulse = self._vitals.pulse(name, patience)
        pause = self._pause
        while not self._stopping.is_set():
            pulse.beat()
            began = monotonic()
            error = self._outlived(name, body, pulse)
            if self._stopping.is_set():
                break
            pulse.died(error)
            if monotonic() - began > self._pause_most:
                pause = self._pause
            self._stopping.wait(pause)
            pause = min(2 * pause, self._pause_most)
        pulse.stop()

    def stop(self) -> None:
        """No loop is started again."""
        self._stopping.set()

    def _outlived(self, name: str, body: Body, pulse: Pulse) -> str:
        """What the loop died of."""
        try:
            body(pulse)
        except OutboxError as error:
            self._log.error("%s: %s; it is tried again", name, error)
            return str(error)
        except Exception as error:  # noqa: BLE001 -- whatever it died of, it is started again
            self._log.exception("the loop %s died; it is started again", name)
            return f"{type(error).__name__}: {error}"
        return "it ended by itself"
