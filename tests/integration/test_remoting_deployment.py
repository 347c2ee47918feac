"""The remoting transport at two masters, a slave and two name servers, each of which goes away."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from outbox.brokers.base import Answer, Broker, Check, Ending, Half, Outage, Outgoing, Sought, Stored, Unknown
from outbox.brokers.native.broker import NativeBroker
from outbox.brokers.native.library import load
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.clock import monotonic
from outbox.identity import fresh_token, unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting
from tests.contracts.rig import end_all, look_up, now, soon
from tests.services.librocketmq import librocketmq
from tests.services.require import require
from tests.services.rocketmq import Deployment, Member
from tests.waiting import expect_soon

DEADLINE: Final = 60.0
#: The master of ``broker-b`` waits for its slave before it says that a message is stored.
MEMBERS: Final = (
    Member("broker-a"),
    Member(
        "broker-b",
        settings={"brokerRole": "SYNC_MASTER", "totalReplicas": 2, "inSyncReplicas": 2, "slaveTimeout": 500},
    ),
    Member("broker-b", 1),
)


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """Servers of this module's own, since they are killed; the last tests leave some of them dead."""
    with require(lambda: Deployment(MEMBERS, name_servers=2)) as started:
        yield started


@pytest.fixture
def opened(deployment: Deployment) -> Iterator[Callable[[], RemotingBroker]]:
    """Opens transports of one group, which look for routes often."""
    group = f"group-{fresh_token()}"
    every: list[RemotingBroker] = []

    def open_one() -> RemotingBroker:
        every.append(RemotingBroker(deployment.url, group, routes_fresh=0.5))
        return every[-1]

    yield open_one
    for each in every:
        each.close()


@pytest.fixture
def broker(opened: Callable[[], RemotingBroker]) -> RemotingBroker:
    return opened()


def fresh_topic(deployment: Deployment, *, at: str | None = None) -> str:
    """A topic at every master, or at one."""
    name = f"topic-{fresh_token()}"
    deployment.create_topics([name, f"{name}-other"], at=at)
    return name


def messages(topic: str, count: int) -> list[Outgoing]:
    """Messages with identities of their own."""
    return [Outgoing(topic, b"x" * 100, unique_ids.fresh(), f"key-{number}") for number in range(count)]


def halves_at(broker: Broker, topic: str, wanted: Collection[str], count: int = 8) -> list[Half]:
    """So many halves, spread evenly over these brokers, waiting until they all go there; a cold one may be busy."""
    batches: list[list[Half]] = []

    def stored() -> bool:
        outcomes = broker.prepare(messages(topic, count), timeout=10)
        batches.append([outcome.half for outcome in outcomes if isinstance(outcome, Stored)])
        return Counter(half.broker for half in batches[-1]) == dict.fromkeys(wanted, count // len(wanted))

    expect_soon(stored, f"halves are stored at {wanted} alone", within=DEADLINE)
    return batches[-1]


def is_away(broker: Broker, topic: str, *, partial: bool | None = None) -> bool:
    """Whether a half does not leave, once the client has noticed that the other end is gone; it never is stored."""
    (outcome,) = broker.prepare(messages(topic, 1), timeout=10)
    assert isinstance(outcome, Outage | Unknown)
    return isinstance(outcome, Outage) and partial in {None, outcome.partial}


class Asked:
    """Remembers which halves were asked about, and leaves them open."""

    def __init__(self) -> None:
        self.halves: list[Half] = []

    def __call__(self, check: Check, answer: Answer) -> None:
        self.halves.append(check.half)
        answer(Verdict.UNKNOWN, soon())

    def about(self, halves: Collection[Half]) -> bool:
        """Whether each of them was asked about."""
        return {half.half_id for half in halves} <= {half.half_id for half in self.halves}


def test_halves_spread_over_the_masters_and_end_where_they_lie(deployment: Deployment, broker: RemotingBroker) -> None:
    # Given a listener that both masters know
    topic, asked = fresh_topic(deployment), Asked()
    broker.listen([topic], asked)
    expect_soon(broker.checks_ready, "both know the listener", within=DEADLINE)

    def asks_about_the_open_ones() -> bool:
        """When of halves at both masters one of each is committed, one rolled back, and the others are left."""
        halves = halves_at(broker, topic, {"broker-a", "broker-b"})
        by_broker = {name: [half for half in halves if half.broker == name] for name in ("broker-a", "broker-b")}
        committed, rolled_back, left_open = ([each[place] for each in by_broker.values()] for place in (0, 1, 2))
        since = now()
        end_all(broker, committed, Verdict.COMMIT)
        end_all(broker, rolled_back, Verdict.ROLLBACK)
        # Then look-ups go to the master that holds each
        sought = [Sought(half, since) for half in (*committed, *rolled_back, *left_open)]
        wanted = [Sighting.VISIBLE] * 2 + [Sighting.ABSENT] * 4
        expect_soon(lambda: broker.find(sought, soon()) == wanted, "the look-ups see them", within=DEADLINE)
        expect_soon(lambda: asked.about(left_open), "both ask", within=DEADLINE)
        return not any(asked.about([half]) for half in (*committed, *rolled_back))

    # And both masters ask about theirs, and not about what has ended: unless one stood still before it had written that
    # down, or before the halves were ended
    expect_soon(asks_about_the_open_ones, "nobody asks about what has ended", within=2 * DEADLINE)


def test_a_topic_that_comes_to_another_master_is_sent_there_too(deployment: Deployment, broker: RemotingBroker) -> None:
    # Given a topic at one master; When it is created at the other one; Then messages go to both
    topic = fresh_topic(deployment, at="broker-a")
    halves_at(broker, topic, {"broker-a"})
    deployment.create_topics([topic, f"{topic}-other"], at="broker-b")
    assert halves_at(broker, topic, {"broker-a", "broker-b"})


def halves_of(broker: Broker, sent: Sequence[Outgoing]) -> list[Half]:
    """The halves of all. The native client gives up after three seconds, however busy the machine: then once more."""
    found: dict[str, Half] = {}

    def complete() -> bool:
        left = [message for message in sent if message.key not in found]
        outcomes = zip(left, broker.prepare(left, timeout=DEADLINE), strict=True)
        found.update({message.key: it.half for message, it in outcomes if isinstance(it, Stored)})
        return len(found) == len(sent)

    expect_soon(complete, "all halves are stored", within=DEADLINE)
    return [found[message.key] for message in sent]


def test_the_native_client_sends_where_we_would(
    deployment: Deployment, broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given two masters, and the native client beside us
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOG_DIR", str(tmp_path))
    topic = fresh_topic(deployment)
    native = NativeBroker(deployment.url, broker.group, load(str(require(librocketmq))), threads=8)
    # When each sends until both masters take halves, and both send one of each lane
    _, spread = (halves_at(each, topic, {"broker-a", "broker-b"}, 64) for each in (broker, native))
    lanes = [replace(message, lane=f"lane-{message.key}") for message in messages(topic, 12)]
    theirs, ours = (halves_of(each, lanes) for each in (native, broker))
    # Then its halves lie at both masters and end where they lie, and each lane has one broker
    end_all(native, spread, Verdict.ROLLBACK)
    assert [half.broker for half in theirs] == [half.broker for half in ours]
    native.close()


def test_a_read_only_broker_and_topic_get_nothing(deployment: Deployment, broker: RemotingBroker) -> None:
    # Given a broker that an operator has closed for writing; When halves are sent; Then they go to the other one
    topic = fresh_topic(deployment)
    deployment.broker("broker-b").configure({"brokerPermission": 4})
    halves_at(broker, topic, {"broker-a"})
    deployment.broker("broker-b").configure({"brokerPermission": 6})
    halves_at(broker, topic, {"broker-a", "broker-b"})
    # When the topic itself is closed; Then it waits, and another topic does not
    deployment.close_topic(topic)
    expect_soon(
        lambda: all(isinstance(it, Outage) and it.partial for it in broker.prepare(messages(topic, 4), 10)),
        "nothing is sent",
        within=DEADLINE,
    )
    assert halves_at(broker, f"{topic}-other", {"broker-a", "broker-b"})


def test_a_master_that_dies_is_left_out_and_used_again_at_another_port(
    deployment: Deployment, opened: Callable[[], RemotingBroker]
) -> None:
    # Given halves at both masters, a topic that only one of them has, and a listener
    broker = opened()
    topic, its_own = fresh_topic(deployment), fresh_topic(deployment, at="broker-a")
    halves = halves_at(broker, topic, {"broker-a", "broker-b"})
    halves_at(broker, its_own, {"broker-a"})
    asked = Asked()
    broker.listen([topic], asked)
    expect_soon(broker.checks_ready, "both know the listener", within=DEADLINE)
    # When that one is killed
    deployment.broker("broker-a").kill()
    # Then halves go to the other one, and what is not stored is the trouble of one broker
    outcomes = [outcome for _ in range(3) for outcome in broker.prepare(messages(topic, 8), timeout=10)]
    assert {type(outcome) for outcome in outcomes} <= {Stored, Outage, Unknown}
    assert all(outcome.partial for outcome in outcomes if isinstance(outcome, Outage))
    halves_at(broker, topic, {"broker-b"})
    # And its halves are neither ended nor told absent
    at_a = [half for half in halves if half.broker == "broker-a"]
    ended = broker.resolve([Ending(half, Verdict.COMMIT) for half in at_a], monotonic() + 2)
    assert {each.confirmation for each in ended} == {Confirmation.UNANSWERED}
    assert look_up(broker, at_a[0], now()) is Sighting.CANNOT_TELL
    # And its own topic waits, also for a relay that was started meanwhile: no refusal, and others get through
    for client in (broker, opened()):
        expect_soon(lambda client=client: is_away(client, its_own, partial=True), "it waits", within=DEADLINE)  # type: ignore[misc]
    # When it is back at another port; Then it is used again, ends its halves, and asks about the new ones
    deployment.broker("broker-a").move()
    new = halves_at(broker, topic, {"broker-a", "broker-b"})
    end_all(broker, at_a, Verdict.COMMIT)
    expect_soon(lambda: look_up(broker, at_a[0], now()) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE)
    expect_soon(broker.checks_ready, "both know the listener again", within=DEADLINE)
    expect_soon(lambda: asked.about(new), "both ask", within=DEADLINE)


def test_a_master_that_hangs_is_left_out_until_it_answers_again(deployment: Deployment, broker: RemotingBroker) -> None:
    # Given a master that is stopped: the name servers keep it, its port takes connections
    topic = fresh_topic(deployment)
    halves_at(broker, topic, {"broker-a", "broker-b"})
    process = psutil.Process(deployment.broker("broker-a").pid)
    process.suspend()
    try:
        # When halves are sent; Then its share is unknown, once, and the next ones go to the other master
        first = broker.prepare(messages(topic, 8), timeout=5)
        assert Unknown in {type(outcome) for outcome in first} <= {Stored, Unknown}
        halves_at(broker, topic, {"broker-b"})
    finally:
        process.resume()
    halves_at(broker, topic, {"broker-a", "broker-b"})


def test_a_late_slave_costs_no_message(
    deployment: Deployment, broker: RemotingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a master whose slave hangs
    topic = fresh_topic(deployment, at="broker-b")
    halves_at(broker, topic, {"broker-b"})
    slave = psutil.Process(deployment.broker("broker-b", 1).pid)
    slave.suspend()
    try:
        expect_soon(lambda: slave.status() == psutil.STATUS_STOPPED, "the slave hangs")
        # When a half is sent and committed; Then both count, although the broker says that the copy is late
        (outcome,) = broker.prepare(messages(topic, 1), timeout=DEADLINE)
        assert isinstance(outcome, Stored)
        assert "codes {12}" in caplog.text
        end_all(broker, [outcome.half], Verdict.COMMIT)
    finally:
        slave.resume()
    expect_soon(
        lambda: look_up(broker, outcome.half, now()) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE
    )


def test_a_slave_without_its_master_is_not_asked(deployment: Deployment, opened: Callable[[], RemotingBroker]) -> None:
    # Given a committed half and an open one at a master whose slave has both, and the master is killed
    broker = opened()
    topic = fresh_topic(deployment, at="broker-b")
    committed, left_open = halves_at(broker, topic, {"broker-b"})[:2]
    end_all(broker, [committed], Verdict.COMMIT)
    expect_soon(lambda: look_up(broker, committed, now()) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE)
    deployment.broker("broker-b").kill()
    # When only the slave is left; Then nobody sends, ends, or looks up there, with an old route or a new one
    for client in (broker, opened()):
        expect_soon(lambda client=client: is_away(client, topic), "nothing leaves", within=DEADLINE)  # type: ignore[misc]
        (ended,) = client.resolve([Ending(left_open, Verdict.COMMIT)], monotonic() + 2)
        assert ended.confirmation is Confirmation.UNANSWERED
        for half in (committed, left_open):
            assert look_up(client, half, now()) is Sighting.CANNOT_TELL


def test_one_name_server_is_enough_and_none_is_for_known_topics(
    deployment: Deployment, opened: Callable[[], RemotingBroker]
) -> None:
    # Given a sender that knows a topic
    broker = opened()
    topic, other = fresh_topic(deployment, at="broker-a"), fresh_topic(deployment, at="broker-a")
    halves_at(broker, topic, {"broker-a"})
    # When one of the name servers is killed; Then new senders and new topics work
    deployment.name_servers[0].kill()
    halves_at(broker, topic, {"broker-a"})
    halves_at(opened(), other, {"broker-a"})
    # When the other one is killed too; Then halves of known topics are stored, committed and looked up
    deployment.name_servers[1].kill()
    for _ in range(3):
        halves = halves_at(broker, topic, {"broker-a"})
    end_all(broker, halves, Verdict.COMMIT)
    expect_soon(lambda: look_up(broker, halves[0], now()) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE)
    # And unknown ones wait, for want of a name server
    (outcome,) = broker.prepare(messages("never-heard-of", 1), timeout=5)
    assert isinstance(outcome, Outage)
    assert not outcome.partial
