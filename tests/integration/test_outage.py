"""Relay processes on real servers: a broker that is away while rows pile up, and a rolling restart under load."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.identity import fresh_token
from outbox.store.database import Database
from tests.integration.relays import (
    DEADLINE,
    RelayProcess,
    arrivals,
    decided_order,
    delivered,
    displaced,
    first_delivery,
    last_id,
    longest_gap,
    now,
    owed,
    pile_up,
)
from tests.services.databases import migrated
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.waiting import expect_soon

ROWS = 1_500
#: One pass and what the others have in hand at that moment.
IN_HAND = 3 * 256


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    """A fresh database at head."""
    with migrated(postgres, statement_timeout=60) as database:
        yield database


@pytest.fixture(scope="module")
def cluster() -> Iterator[RocketMQ]:
    """A cluster of this module's own, since its broker dies."""
    with require(RocketMQ) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: RocketMQ) -> str:
    topic = f"topic-{fresh_token()}"
    cluster.create_topics([topic])
    return topic


def settings(database: Database, cluster: RocketMQ) -> dict[str, str]:
    return {
        "OUTBOX_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "OUTBOX_BROKER_URL": f"rocketmq://{cluster.namesrv}",
    }


def test_a_broker_that_is_away_while_rows_pile_up(
    database: Database, cluster: RocketMQ, topic: str, tmp_path: Path
) -> None:
    with RelayProcess(tmp_path, settings(database, cluster)) as relay:
        # Given a relay at work
        pile_up(database, topic, ROWS)
        expect_soon(lambda: delivered(database) == ROWS, "the first rows are delivered", within=DEADLINE)
        warm, before = relay.resident_mb(), last_id(database)
        # When the broker dies and rows pile up; Then the relay says so, and keeps none of them in memory
        cluster.kill_broker()
        pile_up(database, topic, 2 * ROWS)
        expect_soon(lambda: relay.lacks("broker"), "the relay is not ready", within=DEADLINE)
        waiting = relay.resident_mb()
        assert owed(database) >= 2 * ROWS - IN_HAND
        # When it is back
        cluster.restart_broker()
        back = now(database)
        # Then nothing is dead, each row is visible once, the old ones first, and the relay is ready by itself
        expect_soon(lambda: delivered(database) == 3 * ROWS, "the backlog is delivered", within=DEADLINE)
        expect_soon(relay.ready, "the relay is ready", within=DEADLINE)
        order = decided_order(database, before)
        assert len(displaced(order, IN_HAND)) <= IN_HAND
        keys, _ = arrivals(cluster.namesrv, topic, 3 * ROWS)
        assert (len(keys), set(keys.values())) == (3 * ROWS, {1})
        assert waiting - warm < 50
        print(f"first message {first_delivery(database, before, back):.3f} s after the broker was back")
        assert relay.drain() == 0


def test_a_rolling_restart_of_two_relays_under_load(
    database: Database, cluster: RocketMQ, topic: str, tmp_path: Path
) -> None:
    # Given two relays, and rows that are added all the time
    relays = [RelayProcess(tmp_path, settings(database, cluster)) for _ in range(2)]
    stop, added = threading.Event(), itertools.count()

    def produce() -> None:
        while not stop.wait(0.05):
            pile_up(database, topic, 10)
            next(added)

    with relays[0], relays[1]:
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            # When one after the other is replaced
            for relay in relays:
                assert relay.drain() == 0
                relay.start()
                expect_soon(relay.ready, "the new one is ready", within=DEADLINE)
        finally:
            stop.set()
            producer.join()
        rows = 10 * next(added)
        # Then no row waits for a lease of one that left, none is lost, and none is visible twice
        expect_soon(lambda: delivered(database) == rows, "all rows are delivered", within=DEADLINE)
        keys, moments = arrivals(cluster.namesrv, topic, rows)
        assert (len(keys), set(keys.values())) == (rows, {1})
        print(f"longest gap between two arrivals: {longest_gap(moments):.3f} s")
