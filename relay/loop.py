"""The relay's loop: one thread claims, a few ship, so that database time and broker time overlap."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from outbox.once import Once
from outbox.settings import Settings
from outbox.store.attempt import Attempt
from relay.breaker import Breaker
from relay.shipping import Pass
from relay.timing import Pause
from relay.wake import Wake

#: Seconds until a row may be claimed, as ``NextDue.claim`` says it.
Due = Callable[[], float | None]

#: A claim of less than this part of a full one is small: there is time to be told of each row.
_SMALL: Final = 1 / 4


class Loop:
    """Claims whenever a pass is free and there may be work; ``stop`` lets the passes under way finish.

    After an empty claim it only looks when the next row is due, and rests until then, until it is told of a row, or for
    the longest rest of its rhythm.
    """

    def __init__(self, passes: Pass, breaker: Breaker, due: Due, wake: Wake, settings: Settings) -> None:
        self._pass = passes
        self._breaker = breaker
        self._due = due
        self._wake = wake
        self._rows_per_pass = settings.rows_per_pass
        self._log = settings.logger("relay")
        self._pause = Pause(settings.poll_fastest, settings.poll_slowest)
        #: The longest rest while PostgreSQL tells of each new row.
        self._told_rest = 2 * settings.poll_slowest
        #: Whether the next step claims without a look.
        self._expects_rows = True
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
                rest = self._step()
            except BaseException:
                self._free.release()  # whoever starts this loop again finds every pass free
                raise
            if self._wake.rest(rest):
                self._expects_rows = True
                self._pause.reset()  # whoever takes these rows may be gone before the next ones, without a word
        self._wake.leave()
        self._pool.shutdown(wait=True)
        self._wake.close()

    def wake(self) -> None:
        """There may be rows; safe in any thread."""
        self._wake.ring()

    def stop(self) -> None:
        """No new claims from now on."""
        self._stopping.set()
        self._free.release()
        self._wake.ring()

    def _step(self) -> float:
        """Starts a pass if there are rows; the seconds to rest before the next step."""
        if waiting := self._breaker.admit():
            self._wake.rise()
            return self._without_pass(waiting)
        try:
            if not self._expects_rows and (rest := self._until_due()) > 0:
                return self._without_pass(rest)
            attempts, since = self._pass.claim()
        except SQLAlchemyError:  # told as an event
            return self._without_pass(self._pause.grow())
        if not attempts:
            return self._without_pass(self._after_nothing())
        if self._stopping.is_set():
            self._pass.release(attempts)
            return self._without_pass(0.0)
        self._begin(attempts, since)
        return self._after(len(attempts))

    def _without_pass(self, rest: float) -> float:
        self._free.release()
        return rest

    def _until_due(self) -> float:
        """Seconds until a row may be claimed, or until the next look."""
        self._wake.doze()
        due = self._due()
        rest = self._told_rest if self._wake.told() else self._pause.grow()
        return rest if due is None else min(rest, due)

    def _after_nothing(self) -> float:
        """A row that is due and could not be had is somebody else's at this moment: then there is a pause."""
        looked, self._expects_rows = not self._expects_rows, False
        return self._pause.grow() if looked else 0.0

    def _after(self, rows: int) -> float:
        self._expects_rows = True
        self._pause.reset()
        if rows >= self._rows_per_pass * _SMALL:
            self._wake.rise()
        elif self._wake.doze(at_once=True):
            return 0.0
        return 0.0 if rows >= self._rows_per_pass else self._pause.grow()

    def _begin(self, attempts: Sequence[Attempt], since: float) -> None:
        """Starts a pass; where the system has no thread for it the rows go back, and the loop is started again."""
        shipping = Once(partial(self._ship, attempts, since))
        try:
            shipping.offer(self._pool)
        except RuntimeError:
            if shipping.take():
                self._pass.release(attempts)
                raise

    def _ship(self, attempts: Sequence[Attempt], since: float) -> None:
        """A failing pass leaves its rows to their leases and to the check-back; the loop goes on."""
        try:
            self._pass.ship(attempts, since)
        except Exception:  # noqa: BLE001 -- one failing pass must not end the loop
            self._log.exception("a pass failed; its rows are claimed again once their leases are over")
        finally:
            self._free.release()
            if any(it.lane is not None for it in attempts) or not self._breaker.closed():
                self._wake.ring()  # the next of the lane may go, or the next probe
