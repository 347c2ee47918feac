"""The remoting transport while a real broker is killed and comes back on the same store."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil
import pytest

from outbox.brokers.base import Ending, Half, Outage, Outgoing, Prepared, Stored, Unknown
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.clock import monotonic
from outbox.identity import fresh_token, unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting
from tests.contracts.rig import end_all, look_up
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

DEADLINE = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RocketMQ]:
    """A cluster of this module's own, since its broker is killed."""
    with require(RocketMQ) as started:
        yield started


@pytest.fixture
def topic(cluster: RocketMQ) -> str:
    name = f"topic-{fresh_token()}"
    cluster.create_topics([name, f"{name}-b"], queues=4)
    return name


@pytest.fixture
def broker(cluster: RocketMQ) -> Iterator[RemotingBroker]:
    opened = RemotingBroker(cluster.namesrv, f"group-{fresh_token()}")
    yield opened
    opened.close()


def messages(topic: str, count: int) -> list[Outgoing]:
    """Messages with identities of their own."""
    return [Outgoing(topic, b"x" * 512, unique_ids.fresh(), f"key-{number}") for number in range(count)]


def store(broker: RemotingBroker, topic: str, count: int) -> list[Half]:
    """Halves that the broker stored; a cold one on a busy machine may say "busy" at first."""
    halves: list[Half] = []
    end = time.monotonic() + DEADLINE
    while len(halves) < count:
        outcomes = broker.prepare(messages(topic, count - len(halves)), timeout=DEADLINE)
        halves += [outcome.half for outcome in outcomes if isinstance(outcome, Stored)]
        assert time.monotonic() < end, outcomes
    return halves


def visible(cluster: RocketMQ, topic: str) -> list[str]:
    """The unique ids in the topic, repeats included."""
    with Admin(cluster.namesrv) as admin:
        return sorted(message.properties["UNIQ_KEY"] for message in admin.read(topic))


def commit_until_confirmed(broker: RemotingBroker, halves: list[Half]) -> list[str]:
    """Commits halves at a broker that may still be starting; their ids."""
    end_all(broker, halves, Verdict.COMMIT, within=2 * DEADLINE)
    return sorted(half.half_id for half in halves)


def test_halves_outlive_the_broker_and_its_address_is_found_again(
    cluster: RocketMQ, broker: RemotingBroker, topic: str
) -> None:
    # Given halves at a broker that is killed
    halves = store(broker, topic, 50)
    cluster.kill_broker()
    # When they are committed, looked up, and others are sent
    ended = broker.resolve([Ending(half, Verdict.COMMIT) for half in halves], monotonic() + 2)
    # Then nothing is confirmed, found or stored, and nobody is blamed
    assert {each.confirmation for each in ended} == {Confirmation.UNANSWERED}
    assert look_up(broker, halves[0], datetime.now(UTC)) is Sighting.CANNOT_TELL
    expect_soon(
        lambda: {type(outcome) for outcome in broker.prepare(messages(topic, 3), timeout=2)} == {Outage},
        "nothing leaves, once the client has noticed",
    )
    # When it is back; Then the positions from before still commit, once each
    cluster.restart_broker()
    ids = commit_until_confirmed(broker, halves)
    expect_soon(lambda: len(visible(cluster, topic)) >= 50, "all are visible")
    assert visible(cluster, topic) == ids
    expect_soon(lambda: look_up(broker, halves[0], datetime.now(UTC)) is Sighting.VISIBLE, "the look-up sees it")


def test_what_is_in_flight_when_the_broker_dies(cluster: RocketMQ, broker: RemotingBroker, topic: str) -> None:
    # Given a sender that never stops
    batches: list[list[Prepared]] = []
    sent: set[str] = set()
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            batch = messages(topic, 64)
            sent.update(outgoing.unique_id for outgoing in batch)
            batches.append(broker.prepare(batch, timeout=20))
            over.wait(0.01)

    sender = threading.Thread(target=load)
    sender.start()
    expect_soon(lambda: len(batches) > 10, "the load runs")
    # When the broker is killed amid it, and comes back
    cluster.kill_broker()
    expect_soon(lambda: any(isinstance(outcome, Outage) for outcome in batches[-1]), "the outage is seen")
    cluster.restart_broker()
    expect_soon(lambda: all(isinstance(outcome, Stored) for outcome in batches[-1]), "halves are stored again")
    over.set()
    sender.join(DEADLINE)
    # Then no message was refused, and every half that was acknowledged commits
    outcomes = [outcome for batch in batches for outcome in batch]
    assert {type(outcome) for outcome in outcomes} <= {Stored, Unknown, Outage}
    halves = [outcome.half for outcome in outcomes if isinstance(outcome, Stored)]
    ids = commit_until_confirmed(broker, halves)
    expect_soon(lambda: set(ids) <= set(visible(cluster, topic)), "all that was acknowledged is visible")
    seen = visible(cluster, topic)
    assert set(seen) <= sent
    assert len(seen) == len(set(seen))


def test_a_listener_registers_again_by_itself(cluster: RocketMQ, broker: RemotingBroker, topic: str) -> None:
    # Given a listener, and a half that nobody ends
    asked: list[str] = []
    (half,) = store(broker, topic, 1)
    broker.listen([topic], lambda check, answer: asked.append(check.half.half_id))
    expect_soon(broker.checks_ready, "the listener is registered")
    expect_soon(lambda: half.half_id in asked, "the broker asks")
    # When the broker is killed
    cluster.kill_broker()
    expect_soon(lambda: not broker.checks_ready(), "the listener knows that nobody asks")
    # Then, once it is back, it asks again without any call of ours
    asked.clear()
    cluster.restart_broker()
    expect_soon(broker.checks_ready, "the listener is registered again")
    expect_soon(lambda: half.half_id in asked, "the broker asks again")


def test_a_cluster_leaves_nothing_behind() -> None:
    # Given a cluster; When it is stopped, twice
    started = require(RocketMQ).start()
    process = psutil.Process(started.broker.pid)
    family = [process, *process.children(recursive=True)]
    folder = started.broker.folder
    started.stop()
    started.stop()
    # Then neither process nor folder is left
    assert not any(member.is_running() for member in family)
    assert not folder.exists()
