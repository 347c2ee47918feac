"""The check-back's registration: a real store, a broker that says when it knows us."""

import logging
import threading
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy.exc import OperationalError

from checkback.checker import Checker
from checkback.listener import Listener
from outbox.brokers.base import OnCheck
from outbox.commits import Commits
from outbox.envelope import Envelopes
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.heartbeats import Heartbeats
from outbox.store.open_groups import OpenGroups
from outbox.store.operations import Operations
from outbox.store.topics import named_topics
from tests.integration.rows import added, force
from tests.integration.scripted import ScriptedBroker
from tests.integration.test_checkback import committed
from tests.waiting import expect_soon


class Registry(ScriptedBroker):
    """Remembers who listens for what."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.registered: list[frozenset[str]] = []
        self.topics: list[frozenset[str]] = []

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        self.registered.append(frozenset(groups))
        self.topics.append(frozenset(topics))

    def checks_ready(self) -> bool:
        return self.ready


class ByTopic(Registry):
    """A transport that is asked only about topics that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, check_scope="topic")


class Away(OpenGroups):
    """A database that cannot be asked, until it is back."""

    asked = 0
    back = False

    def run(self) -> frozenset[str]:
        self.asked += 1
        if self.back:
            return super().run()
        raise OperationalError("SELECT", {}, ConnectionError("refused"))


class Running:
    """A listener in its thread."""

    def __init__(self, database: Database, registry: Registry, open_groups: OpenGroups | None = None) -> None:
        leases = CommitLeases(database)
        checker = Checker(
            leases, Commits(registry, leases, 1), Envelopes("o"), commit_window=1, commit_lease=2, now=lambda: 0.0
        )
        groups, topics = (open_groups or OpenGroups(database)).run, partial(named_topics, database)
        self._listener = Listener(
            registry, checker, Heartbeats(database), groups=groups, topics=topics, every=0.05, gap=30
        )
        self._thread = threading.Thread(target=self._listener.run)

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()
        self._thread.join()


def heard(database: Database) -> int:
    return len(Operations(database).figures().heartbeats)


def test_a_listener_is_heard_while_it_runs_and_gone_when_it_stops(database: Database) -> None:
    registry = Registry()
    with Running(database, registry):
        expect_soon(lambda: heard(database) == 1, "the heartbeat is written")
    assert heard(database) == 0
    assert registry.registered == [{"outbox-tests"}]


def test_a_listener_that_no_broker_knows_is_not_heard(database: Database) -> None:
    # Given brokers that do not know us yet
    registry = Registry()
    registry.ready = False
    with Running(database, registry):
        expect_soon(lambda: len(registry.registered) == 1, "it listens")
        assert heard(database) == 0
        # When they do, Then it is heard
        registry.ready = True
        expect_soon(lambda: heard(database) == 1, "the heartbeat is written")


def test_groups_of_earlier_decisions_are_added_and_kept(database: Database) -> None:
    # Given a decision under a group that this deployment no longer uses
    row_id, _, _ = committed(database)
    force(database, row_id, half_group="outbox-old-name")
    registry = Registry()
    with Running(database, registry):
        expect_soon(lambda: {"outbox-tests", "outbox-old-name"} in registry.registered, "both are listened for")
        # When it is settled, Then nobody is forgotten
        force(database, row_id, half_group="outbox-tests")
        expect_soon(lambda: heard(database) == 1, "the heartbeat is written")
    assert registry.registered[-1] == {"outbox-tests", "outbox-old-name"}


def test_topics_are_named_where_checks_go_by_topic(database: Database) -> None:
    # Given rows of two topics, and a transport that is asked only about topics that it names
    added(database, 2, topic="payments")
    (refund,) = added(database, topic="refunds")
    registry = ByTopic()
    with Running(database, registry):
        expect_soon(lambda: registry.topics[-1:] == [{"payments", "refunds"}], "both topics are named")
        # When one topic has no rows any more and another has its first, Then it is added and none is forgotten
        force(database, refund, topic="invoices")
        expect_soon(lambda: registry.topics[-1:] == [{"payments", "refunds", "invoices"}], "all three are named")


def test_no_topics_are_named_where_checks_go_by_group(database: Database) -> None:
    added(database)
    registry = Registry()
    with Running(database, registry):
        expect_soon(lambda: heard(database) == 1, "the heartbeat is written")
    assert registry.topics == [frozenset()]


def test_without_the_database_it_listens_all_the_same(database: Database) -> None:
    registry = Registry()
    with Running(database, registry, Away(database)):
        expect_soon(lambda: registry.registered == [{"outbox-tests"}], "it listens")
    assert heard(database) == 0


def test_an_outage_of_the_database_is_told_once_and_so_is_its_end(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    # Given turns that fail one after another
    open_groups = Away(database)
    with caplog.at_level(logging.WARNING, "checkback"), Running(database, Registry(), open_groups):
        expect_soon(lambda: open_groups.asked >= 3, "it has tried again")
        # When the database is back
        open_groups.back = True
        expect_soon(lambda: heard(database) == 1, "the heartbeat is written")
    # Then the log has a line for either
    assert caplog.messages == [
        "check-back turn failed, it is tried again: refused",
        "check-back turns succeed again",
    ]
