"""The remoting transport under the contract suite: a real broker, shared by the session."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from outbox.brokers.base import Broker, Capabilities, Half
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.pop import PopSource
from outbox.brokers.source import Source
from outbox.identity import fresh_token
from tests.contracts.rig import Rig, Visible, message, publish
from tests.services.ports import free_port
from tests.services.rocketmq import create_topics
from tests.services.rocketmq.admin import Admin

#: Topics are created many at a time: the name server hears of them a moment later.
POOL = 16


class RemotingRig:
    """Opens brokers and sources on a cluster and closes them."""

    capabilities = Capabilities(confirms=True, finds=True, ends_by_handle=True, check_scope="group")
    deadline = 90.0
    check_deadline = 90.0
    short_invisible = 2.0
    delays = (1.0, 6.0)
    exclusive = True
    orderly = True

    def __init__(self, namesrv: str, topics: Iterator[str]) -> None:
        self._namesrv = namesrv
        self._topics = topics
        self._admin = Admin(namesrv)
        self._opened: list[Broker | Source] = []

    def open(self, group: str) -> Broker:
        """A connection to the cluster."""
        return self._keep(RemotingBroker(self._namesrv, group))

    def away(self, group: str) -> Broker:
        """A connection to a name server that is not there."""
        return self._keep(RemotingBroker(f"127.0.0.1:{free_port()}", group))

    def source(self, topic: str, group: str, invisible: float) -> Source:
        """A POP consumer."""
        source = PopSource(self._namesrv, group, [topic], invisible=invisible)
        self._opened.append(source)
        return source

    def orderly_source(self, topic: str, group: str, invisible: float) -> Source:
        """A POP consumer that keeps order."""
        source = PopSource(self._namesrv, group, [topic], invisible=invisible, orderly=True)
        self._opened.append(source)
        return source

    def fresh_topic(self) -> str:
        """The next of the topics that were created."""
        return next(self._topics)

    def fresh_plain_topic(self) -> str:
        """As ``fresh_topic``: topics take both kinds."""
        return self.fresh_topic()

    def fresh_timed_topic(self) -> str:
        """As ``fresh_topic``: topics take both kinds."""
        return self.fresh_topic()

    def fresh_group(self) -> str:
        """Any name: groups come to be by use."""
        return f"group-{fresh_token()}"

    def visible(self, topic: str) -> list[Visible]:
        """Pulled past all groups."""
        return [
            Visible(
                message.properties["UNIQ_KEY"],
                message.properties.get("KEYS", ""),
                message.properties.get("TAGS"),
                message.properties,
                message.body,
                message.queue_id,
            )
            for message in self._admin.read(topic)
        ]

    def nowhere(self, half: Half) -> Half:
        """A position that the commit log has not reached."""
        queue_offset, commit_log_offset = half.handle.split(" ")
        return replace(half, handle=f"{queue_offset} {int(commit_log_offset) + 10**12}")

    def close(self) -> None:
        """Closes what the test opened."""
        for opened in self._opened:
            opened.close()
        self._admin.close()

    def _keep(self, broker: Broker) -> Broker:
        self._opened.append(broker)
        return broker


def fresh_topics(namesrv: str, message_type: str = "") -> Iterator[str]:
    """Topics of the cluster, created when they are needed."""
    for _ in itertools.count():
        names = [f"topic-{fresh_token()}" for _ in range(POOL)]
        create_topics(namesrv, names, queues=4, message_type=message_type)
        yield from names


@pytest.fixture(scope="session")
def remoting_topics(rocketmq: str) -> Iterator[str]:
    """The session's supply of topics; a first message makes the store older than whatever a test decides."""
    topics = fresh_topics(rocketmq)
    rig = RemotingRig(rocketmq, topics)
    publish(rig.open(rig.fresh_group()), message(rig.fresh_topic()))
    rig.close()
    return topics


@pytest.fixture
def remoting_rig(rocketmq: str, remoting_topics: Iterator[str]) -> Iterator[Rig]:
    """The session's cluster; each test has topics and groups of its own."""
    rig = RemotingRig(rocketmq, remoting_topics)
    yield rig
    rig.close()
