"""The relay as a whole: its loop, and the scheduled work beside it."""

import threading
from dataclasses import dataclass

from apscheduler.schedulers.background import BackgroundScheduler

from outbox.settings import Settings
from outbox.store.operations import Operations
from relay.events import Events
from relay.keeper import LeaseKeeper
from relay.loop import Loop
from relay.reconciler import Reconciler

_PURGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class Work:
    """What the daemon runs."""

    loop: Loop
    keeper: LeaseKeeper
    reconciler: Reconciler
    operations: Operations
    events: Events


class Daemon:
    """Runs until ``stop``: claims in the calling thread, renewals, reconciliation and retention on a schedule."""

    def __init__(self, work: Work, settings: Settings) -> None:
        self._work = work
        self._settings = settings
        self._stopping = threading.Event()
        self._scheduler = BackgroundScheduler(job_defaults={"coalesce": True, "max_instances": 1}, timezone="UTC")

    def run(self) -> None:
        """Blocks until ``stop``; passes under way finish first."""
        self._schedule()
        self._scheduler.start()
        try:
            self._work.loop.run()
        finally:
            self._scheduler.shutdown(wait=True)

    def stop(self) -> None:
        """No new claims; ``run`` returns once the passes under way have ended."""
        self._stopping.set()
        self._work.loop.stop()

    def _schedule(self) -> None:
        settings, work = self._settings, self._work
        every = self._scheduler.add_job
        every(work.keeper.renew, "interval", seconds=settings.lease / 3, id="renew", misfire_grace_time=None)
        every(work.reconciler.run, "interval", seconds=settings.reconcile_every, id="reconcile")
        every(self._purge, "interval", seconds=settings.purge_every, id="purge")

    def _purge(self) -> None:
        """Small batches until nothing is old enough, or the relay stops."""
        purged = _PURGE_ROWS
        while purged == _PURGE_ROWS and not self._stopping.is_set():
            if purged := self._work.operations.purge(self._settings.retention, _PURGE_ROWS):
                self._work.events.purged(purged)
