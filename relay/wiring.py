"""Builds the relay from settings, a database and a broker."""

import random
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from outbox import clock
from outbox.brokers.base import Broker
from outbox.commits import Commits
from outbox.envelope import Envelopes
from outbox.health.pulse import Pulse
from outbox.health.vitals import Vitals
from outbox.settings import Settings
from outbox.store.claims import Claims
from outbox.store.clock_sweep import ClockSweep, Reach
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions
from outbox.store.heartbeats import Heartbeats
from outbox.store.identity import Identity
from outbox.store.lane_sweep import LaneSweep
from outbox.store.next_due import NextDue
from outbox.store.retention import Retention
from outbox.store.writable import why_not_writable
from relay.breaker import Breaker
from relay.daemon import LOOP, Daemon, Work
from relay.events import Events, LogEvents
from relay.keeper import LeaseKeeper
from relay.loop import Loop
from relay.notifications import Notifications
from relay.observed import ObservedPass
from relay.presumption import Presumption
from relay.reconciler import Reconciler
from relay.reporting import BROKER, CLAIMS, DATABASE, FanOut, VitalEvents
from relay.shipping import Stage
from relay.timing import SPREAD
from relay.wake import Wake
from relay.watch import PING, Watch

#: Seconds for which the claiming loop may be silent beyond two leases: passes may be slow, a claim may wait for locks.
_LOOP_PATIENCE = 30.0
#: What jitter makes of a back-off at most, and a little more (``relay.timing.backoff``).
_JITTER = 1 + SPREAD + 0.05
#: Seconds between two purges that look at every old row, also at those that were kept the last time.
_PURGE_TOUR = 3600.0


def build(
    settings: Settings,
    database: Database,
    broker: Broker,
    events: Events | None = None,
    *,
    vitals: Vitals | None = None,
) -> Daemon:
    """A relay over ``database`` and ``broker``; both stay the caller's to close."""
    vitals = vitals or Vitals()
    vitals.expect(DATABASE, CLAIMS, BROKER)
    events = FanOut(events or LogEvents(settings.logger("relay")), VitalEvents(vitals))
    patience = 2 * settings.lease + _LOOP_PATIENCE
    claiming, shipping = vitals.pulse(LOOP, patience), vitals.pulse("passes", patience, beats=False)
    breaker = _breaker(settings, broker, claiming)
    claims, leases = Claims(database), CommitLeases(database, settings.holds_lane)
    keeper = LeaseKeeper(claims, settings.lease, clock.monotonic)
    stage = Stage(
        broker=broker,
        claims=claims,
        decisions=Decisions(database, settings.holds_lane),
        leases=leases,
        envelopes=Envelopes(Identity(database).origin(settings.service)),
        keeper=keeper,
        breaker=breaker,
        events=events,
        settings=settings,
        now=clock.monotonic,
    )
    finisher = (
        Commits(broker, leases, settings.broker_retention)
        if broker.capabilities.finds
        else Presumption(leases, Heartbeats(database), settings)
    )
    reconciler = Reconciler(leases, finisher, events, settings, clock.monotonic)
    passes = ObservedPass(stage, claiming, shipping)
    loop = Loop(passes, breaker, _due(database, claiming, events), _wake(settings, database), settings)
    watch = Watch(lambda: why_not_writable(database), broker, breaker, vitals)
    work = Work(
        loop=loop,
        watch=watch,
        keeper=keeper,
        reconciler=reconciler,
        retention=Retention(database, tour=_PURGE_TOUR),
        lanes=LaneSweep(database),
        clock=ClockSweep(database, _reach(settings)),
        events=events,
    )
    return Daemon(work, settings, vitals)


def _breaker(settings: Settings, broker: Broker, loop: Pulse) -> Breaker:
    def reachable() -> bool:
        """While the broker is away the loop claims nothing: its pings are its signs of life."""
        loop.beat()
        return broker.reachable(PING)

    return Breaker(
        settings.outage_delay,
        settings.outage_delay_most,
        clock.monotonic,
        reachable=reachable,
        jitter=lambda: random.uniform(-1, 1),  # noqa: S311 -- spreads relays, hides nothing
    )


def _due(database: Database, loop: Pulse, events: Events) -> Callable[[], float | None]:
    """The look of a loop that has nothing to claim, and its sign of life; told of as the claim that it stands for."""
    next_due = NextDue(database)

    def due() -> float | None:
        """As ``NextDue.claim``."""
        loop.beat()
        try:
            found = next_due.claim()
        except SQLAlchemyError as error:
            events.claim_failed(error)
            raise
        events.claimed(())
        return found

    return due


def _wake(settings: Settings, database: Database) -> Wake:
    notified = settings.notify and database.dialect == "postgresql"
    log = settings.logger("relay")
    return Wake(clock.monotonic, Notifications(database, clock.monotonic, log=log) if notified else None)


def _reach(settings: Settings) -> Reach:
    """How far ahead the relays write; those of one database have about the same settings."""
    lease = max(settings.lease, settings.commit_lease)
    delay = max(settings.backoff_most, settings.partial_delay_most, settings.unknown_delay, settings.outage_delay_most)
    return Reach(lease, max(lease, _JITTER * delay))
