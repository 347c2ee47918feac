"""Builds the check-back from settings, a database and a broker."""

from functools import partial

from checkback.checker import Checker
from checkback.listener import Listener
from outbox import clock
from outbox.brokers.base import Broker
from outbox.commits import Commits
from outbox.envelope import Envelopes
from outbox.health.vitals import Vitals
from outbox.settings import Settings
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.heartbeats import Heartbeats
from outbox.store.identity import Identity
from outbox.store.open_groups import OpenGroups
from outbox.store.topics import named_topics


def build(settings: Settings, database: Database, broker: Broker, vitals: Vitals | None = None) -> Listener:
    """A check-back listener over ``database`` and ``broker``; both stay the caller's to close."""
    log = settings.logger("checkback")
    leases = CommitLeases(database, settings.holds_lane)
    checker = Checker(
        leases,
        Commits(broker, leases, settings.broker_retention),
        Envelopes(Identity(database).origin(settings.service)),
        commit_window=settings.commit_window,
        commit_lease=settings.commit_lease,
        now=clock.monotonic,
        log=log,
    )
    return Listener(
        broker,
        checker,
        Heartbeats(database),
        groups=OpenGroups(database).run,
        topics=partial(named_topics, database),
        every=settings.heartbeat_every,
        gap=settings.heartbeat_gap,
        vitals=vitals,
        log=log,
    )
