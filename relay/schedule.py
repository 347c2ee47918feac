"""Work at intervals, whatever becomes of the host's wall clock."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy.exc import SQLAlchemyError

from outbox.clock import monotonic
from outbox.health.pulse import Pulse
from outbox.health.vitals import Vitals
from relay.events import Events

_LOG = logging.getLogger("relay")

#: Seconds between two looks at the clocks, and what they may drift apart meanwhile. NTP slews by 0.5 ms a second.
_LOOK: Final = 1.0
_DRIFT: Final = 0.5
#: Seconds beyond its interval that work may take, or be late, before it counts as stalled.
PATIENCE: Final = 120.0


class Schedule:
    """A scheduler that notices when the wall clock is set.

    APScheduler plans by the wall clock: set back by an hour, it would do nothing for that hour. Work that fails is done
    again after its interval; a database that is away is told as an event, anything else shows as a loop that died.
    """

    def __init__(
        self,
        vitals: Vitals | None = None,
        events: Events | None = None,
        *,
        log: logging.Logger = _LOG,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._vitals = vitals or Vitals()
        self._events = events or Events()
        self._log = log
        self._wall = wall
        self._now = now
        self._apart = wall() - now()
        self._stopping = threading.Event()
        self._scheduler = BackgroundScheduler(job_defaults={"coalesce": True, "max_instances": 1}, timezone="UTC")
        self._watch = threading.Thread(target=self._watch_clocks, name="relay-clocks", daemon=True)

    def every(
        self, seconds: float, work: Callable[[], object], name: str, *, patience: float = PATIENCE, **options: Any
    ) -> None:
        """Runs ``work`` that often, never twice at once; ``options`` of APScheduler's ``add_job``.

        ``patience``: seconds for the work beyond its interval, after which it counts as stalled.
        """
        pulse = self._vitals.pulse(name, 2 * seconds + patience)
        watched = _Watched(work, name, pulse, self._events, self._log)
        self._scheduler.add_job(watched, "interval", seconds=seconds, id=name, name=name, **options)

    def start(self) -> None:
        """From now on."""
        self._scheduler.start()
        self._watch.start()

    def stop(self) -> None:
        """Returns once the work under way is done."""
        self._stopping.set()
        self._watch.join()
        self._scheduler.shutdown(wait=True)

    def _watch_clocks(self) -> None:
        while not self._stopping.wait(_LOOK):
            self._compare_clocks()

    def _compare_clocks(self) -> None:
        apart = self._wall() - self._now()
        step, self._apart = apart - self._apart, apart
        if abs(step) < _DRIFT:
            return
        self._log.warning("the host's wall clock was set by %+.1f s: scheduled work is planned again", step)
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))


class _Watched:
    """Work whose success, failure and length are seen."""

    def __init__(
        self, work: Callable[[], object], name: str, pulse: Pulse, events: Events, log: logging.Logger
    ) -> None:
        self._work = work
        self._name = name
        self._pulse = pulse
        self._events = events
        self._log = log

    def __call__(self) -> None:
        """Runs it once."""
        try:
            with self._pulse.busy():
                self._work()
        except SQLAlchemyError as error:
            self._events.work_failed(self._name, error)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the work is done again
            self._log.exception("%s failed; it runs again after its interval", self._name)
            self._pulse.died(f"{type(error).__name__}: {error}")
            return
        self._pulse.beat()
