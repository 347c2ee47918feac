"""The relay as a whole: its loop, and the scheduled work beside it."""

import threading
from dataclasses import dataclass
from typing import Final

from outbox.clock import monotonic
from outbox.health.supervisor import Supervisor
from outbox.health.vitals import Vitals
from outbox.settings import Settings
from outbox.store.clock_sweep import ClockSweep
from outbox.store.lane_sweep import LaneSweep
from outbox.store.retention import Periods, Retention
from relay.events import Events
from relay.keeper import LeaseKeeper
from relay.loop import Loop
from relay.purge import Purge
from relay.reconciler import Reconciler
from relay.schedule import Schedule
from relay.watch import Watch

#: The claiming loop, as probes are told.
LOOP = "relay"
#: Seconds between two looks for rows that the database's clock, set back, would keep waiting.
_CLOCK_SWEEP_EVERY: Final = 10.0
#: Seconds for which the watch may be silent: a database that says nothing is waited for.
_WATCH_PATIENCE = 60.0
#: Seconds for a purge beyond its interval: well above ``relay.purge.LONGEST``, after which a run ends by itself.
_PURGE_PATIENCE = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the daemon runs."""

    loop: Loop
    watch: Watch
    keeper: LeaseKeeper
    reconciler: Reconciler
    retention: Retention
    lanes: LaneSweep
    clock: ClockSweep
    events: Events


class Daemon:
    """Runs until ``stop``: claims in the calling thread, renewals, reconciliation and retention on a schedule.

    Every loop is supervised: one that dies is started again, and ``vitals`` tells how each of them is.
    """

    def __init__(self, work: Work, settings: Settings, vitals: Vitals) -> None:
        self._work = work
        self._settings = settings
        self._stopping = threading.Event()
        self._vitals = vitals
        log = settings.logger("relay")
        self._supervisor = Supervisor(vitals, log)
        self._schedule = Schedule(vitals, work.events, log=log)
        periods = Periods(settings.retention, settings.retention_dead)
        self._purge = Purge(work.retention, periods, work.events, monotonic, self._stopping.wait)

    def run(self) -> None:
        """Blocks until ``stop``; passes under way finish first."""
        self._plan()
        self._schedule.start()
        watching = self._supervisor.start("watch", self._work.watch.run, _WATCH_PATIENCE)
        try:
            self._supervisor.run(LOOP, lambda _: self._work.loop.run())
        finally:
            self._schedule.stop()
            watching.join()

    def stop(self) -> None:
        """No new claims; ``run`` returns once the passes under way have ended."""
        self._vitals.stop()
        self._supervisor.stop()
        self._stopping.set()
        self._work.watch.stop()
        self._work.loop.stop()

    def wake(self) -> None:
        """There may be rows: claims at once, instead of at the end of its rest; safe in any thread, never blocks.

        ``Outbox(origin, wake=daemon.wake)`` calls it where relay and service are one process.
        """
        self._work.loop.wake()

    def _plan(self) -> None:
        settings, work = self._settings, self._work
        every = self._schedule.every
        every(settings.lease / 3, work.keeper.renew, "renew", misfire_grace_time=None)
        every(settings.reconcile_every, self._reconcile, "reconcile")
        every(settings.lane_sweep_every, self._sweep, "lanes")
        every(_CLOCK_SWEEP_EVERY, self._sweep_clock, "clock")
        every(settings.purge_every, self._purge.run, "purge", patience=_PURGE_PATIENCE)

    def _reconcile(self) -> None:
        """What it ends may let lanes go on, or is to be published anew."""
        if self._work.reconciler.run():
            self._work.loop.wake()

    def _sweep(self) -> None:
        """A lane that had to be found does not wait for the loop's next look as well."""
        if woken := self._work.lanes.run():
            self._work.events.woken(woken)
            self._work.loop.wake()

    def _sweep_clock(self) -> None:
        if rows := self._work.clock.run():
            self._work.events.set_back(rows)
            self._work.loop.wake()
