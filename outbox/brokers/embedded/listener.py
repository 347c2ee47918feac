"""The thread that answers checks: registers its groups, looks for questions, calls the handler."""

import logging
import os
import threading
from collections.abc import Callable, Collection

from outbox.brokers.base import Answer, Check, Ended, Ending, OnCheck
from outbox.brokers.embedded import checks
from outbox.brokers.embedded.storefile import StoreFile, Unavailable
from outbox.clock import monotonic
from outbox.identity import fresh_token
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation

log = logging.getLogger(__name__)

#: How long a stop waits for a handler that is in the middle of a check.
_STOP_TIMEOUT = 10.0


class Listener:
    """One registration and one thread: a handler that blocks for longer than the expiry loses the registration."""

    def __init__(
        self,
        file: StoreFile,
        groups: Collection[str],
        on_check: OnCheck,
        end: Callable[[Ending, float], Ended],
    ) -> None:
        self._file = file
        self._groups = frozenset(groups)
        self._on_check = on_check
        self._end = end
        self._id = fresh_token()
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._away = False
        self._fresh_until = self._beat_at = monotonic()
        self._thread = threading.Thread(target=self._run, name="outbox-embedded-checks", daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        """Whether the registration is in the file and has not expired; never in a forked child."""
        return self._pid == os.getpid() and self._thread.is_alive() and monotonic() < self._fresh_until

    def stop(self) -> None:
        """Takes the registration back and waits for the check in hand, but not for a handler that hangs."""
        self._stopping.set()
        if self._pid != os.getpid() or self._thread is threading.current_thread():
            return
        self._thread.join(_STOP_TIMEOUT)
        if self._thread.is_alive():
            log.warning("the check in hand did not end within %s s; its answer will not be written", _STOP_TIMEOUT)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._guarded(self._pass)
            self._stopping.wait(self._file.timing.poll_interval)
        self._fresh_until = monotonic()
        self._guarded(self._unregister)

    def _guarded(self, step: Callable[[], None]) -> None:
        """An outage is logged once, when it begins, and when it is over."""
        try:
            step()
        except Unavailable as error:
            if not self._away:
                log.warning("checks are not answered: %s", error)
            self._away = True
        except Exception:
            log.exception("the embedded broker's listener met a fault of its own and goes on")
        else:
            if self._away:
                log.warning("checks are answered again")
            self._away = False

    def _pass(self) -> None:
        self._beat()
        checks.tick(self._file, self._limit())
        for check in self._take():
            if self._stopping.is_set():
                return
            self._ask(check)
            self._beat()

    def _beat(self) -> None:
        now = monotonic()
        if now < self._beat_at:
            return
        expiry = self._file.timing.listener_expiry
        with self._file.writing(self._limit()) as connection:
            checks.register(connection, self._id, self._groups, self._file.clock() + expiry)
        self._fresh_until, self._beat_at = now + expiry, now + expiry / 3

    def _unregister(self) -> None:
        with self._file.writing(self._limit()) as connection:
            checks.unregister(connection, self._id)

    def _take(self) -> list[Check]:
        with self._file.reading() as connection:
            if not checks.has_questions(connection, self._id):
                return []
        with self._file.writing(self._limit()) as connection:
            return checks.take_questions(connection, self._id)

    def _ask(self, check: Check) -> None:
        try:
            self._on_check(check, self._answer_to(check))
        except Exception:
            log.exception("half %s: the check's handler failed; the broker will ask again", check.half.half_id)

    def _answer_to(self, check: Check) -> Answer:
        def answer(verdict: Verdict, until: float) -> Ended:
            if verdict is Verdict.UNKNOWN:
                return Ended(Confirmation.CONFIRMED)
            return self._end(Ending(check.half, verdict), until)

        return answer

    def _limit(self) -> float:
        return monotonic() + self._file.timing.busy_timeout
