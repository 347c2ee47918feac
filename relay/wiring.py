"""Builds the relay from settings, a database and a broker."""

import logging
import random

from outbox import clock
from outbox.brokers.base import Broker
from outbox.commits import Commits
from outbox.envelope import Envelopes, origin_of
from outbox.settings import Settings
from outbox.store.claims import Claims
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions
from outbox.store.identity import Identity
from outbox.store.next_due import NextDue
from outbox.store.retention import Retention
from relay.breaker import Breaker
from relay.daemon import Daemon, Work
from relay.events import Events, LogEvents
from relay.keeper import LeaseKeeper
from relay.loop import Loop
from relay.notifications import Notifications
from relay.presumption import Presumption
from relay.reconciler import Reconciler
from relay.shipping import Pass, Stage
from relay.wake import Wake

#: Seconds for the broker's answer to a ping.
_PING = 2.0


def build(settings: Settings, database: Database, broker: Broker, events: Events | None = None) -> Daemon:
    """A relay over ``database`` and ``broker``; both stay the caller's to close."""
    events = events or LogEvents(logging.getLogger("relay"))
    breaker = _breaker(settings, broker)
    claims, leases, identity = Claims(database), CommitLeases(database), Identity(database)
    keeper = LeaseKeeper(claims, settings.lease, clock.monotonic)
    envelopes = Envelopes(origin_of(settings.service, identity.database_id()))
    stage = Stage(
        broker,
        claims,
        Decisions(database),
        leases,
        envelopes,
        keeper,
        breaker,
        events,
        settings,
        clock.monotonic,
    )
    finisher = (
        Commits(broker, leases, settings.broker_retention)
        if broker.capabilities.finds
        else Presumption(leases, identity, settings)
    )
    reconciler = Reconciler(leases, finisher, events, settings, clock.monotonic)
    loop = Loop(Pass(stage), breaker, NextDue(database).claim, _wake(settings, database), settings)
    return Daemon(Work(loop, keeper, reconciler, Retention(database), events), settings)


def _breaker(settings: Settings, broker: Broker) -> Breaker:
    return Breaker(
        settings.outage_delay,
        settings.outage_delay_most,
        clock.monotonic,
        reachable=lambda: broker.reachable(_PING),
        jitter=lambda: random.uniform(-1, 1),  # noqa: S311 -- spreads relays, hides nothing
    )


def _wake(settings: Settings, database: Database) -> Wake:
    notified = settings.notify and database.dialect == "postgresql"
    return Wake(clock.monotonic, Notifications(database, clock.monotonic) if notified else None)
