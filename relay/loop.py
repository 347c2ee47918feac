"""The relay's loop: one thread claims, a few ship, so that database time and broker time overlap."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.exc import SQLAlchemyError

from outbox.settings import Settings
from outbox.store.claims import Attempt
from relay.breaker import Breaker
from relay.shipping import Pass
from relay.timing import Pause

_log = logging.getLogger("relay")


class Loop:
    """Claims whenever a pass is free and there may be work; ``stop`` lets the passes under way finish."""

    def __init__(self, passes: Pass, breaker: Breaker, settings: Settings) -> None:
        self._pass = passes
        self._breaker = breaker
        self._rows_per_pass = settings.rows_per_pass
        self._pause = Pause(settings.poll_fastest, settings.poll_slowest)
        self._free = threading.Semaphore(settings.passes)
        self._pool = ThreadPoolExecutor(settings.passes, thread_name_prefix="relay-pass")
        self._stopping = threading.Event()

    def run(self) -> None:
        """Claims until ``stop``; then returns once every pass has ended."""
        while not self._stopping.is_set():
            self._free.acquire()
            if self._stopping.is_set():
                self._free.release()
                break
            try:
                rest = self._claim_and_ship()
            except BaseException:
                self._free.release()  # whoever starts this loop again finds every pass free
                raise
            self._stopping.wait(rest)
        self._pool.shutdown(wait=True)

    def stop(self) -> None:
        """No new claims from now on."""
        self._stopping.set()
        self._free.release()

    def _claim_and_ship(self) -> float:
        """Starts a pass if there are rows; the seconds to rest before the next claim."""
        if waiting := self._breaker.admit():
            self._free.release()
            return waiting
        try:
            attempts, since = self._pass.claim()
        except SQLAlchemyError:  # told as an event
            self._free.release()
            return self._pause.grow()
        if not attempts:
            self._free.release()
            return self._pause.grow()
        if self._stopping.is_set():
            self._free.release()
            self._pass.release(attempts)
            return 0.0
        self._pool.submit(self._ship, attempts, since)
        self._pause.reset()
        return 0.0 if len(attempts) >= self._rows_per_pass else self._pause.grow()

    def _ship(self, attempts: Sequence[Attempt], since: float) -> None:
        """A failing pass leaves its rows to their leases and to the check-back; the loop goes on."""
        try:
            self._pass.ship(attempts, since)
        except Exception:  # noqa: BLE001 -- one failing pass must not end the loop
            _log.exception("a pass failed; its rows are claimed again once their leases are over")
        finally:
            self._free.release()
