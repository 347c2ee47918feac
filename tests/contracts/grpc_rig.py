"""The gRPC transport under the contract suite: a real proxy before the session's cluster."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from outbox.brokers.base import Broker, Capabilities, Half
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.broker import GrpcBroker
from outbox.brokers.grpc.source import GrpcSource
from outbox.brokers.source import Source
from tests.contracts.remoting_rig import RemotingRig, fresh_topics
from tests.contracts.rig import Rig
from tests.services.ports import free_port


class GrpcRig(RemotingRig):
    """Sends through the proxy; what is seen is read over the remoting protocol."""

    capabilities = Capabilities(confirms=False, finds=False, ends_by_handle=False, check_scope="topic")

    def __init__(
        self,
        proxy: str,
        namesrv: str,
        topics: Iterator[str],
        plain_topics: Iterator[str],
        timed_topics: Iterator[str],
    ) -> None:
        super().__init__(namesrv, topics)
        self._proxy = proxy
        self._plain_topics = plain_topics
        self._timed_topics = timed_topics

    def open(self, group: str) -> Broker:
        """A connection to the proxy."""
        return self._keep(GrpcBroker(Access(self._proxy), group))

    def away(self, group: str) -> Broker:
        """A connection to a proxy that is not there."""
        return self._keep(GrpcBroker(Access(f"127.0.0.1:{free_port()}"), group))

    def source(self, topic: str, group: str, invisible: float) -> Source:
        """A consumer behind the proxy."""
        source = GrpcSource(Access(self._proxy), group, [topic], invisible=invisible)
        self._opened.append(source)
        return source

    def orderly_source(self, topic: str, group: str, invisible: float) -> Source:
        """A consumer behind the proxy, in a group that is FIFO at the broker."""
        for address in self._admin.brokers().values():
            self._admin.create_group(address, group, orderly=True)
        source = GrpcSource(Access(self._proxy), group, [topic], invisible=invisible, orderly=True)
        self._opened.append(source)
        return source

    def fresh_plain_topic(self) -> str:
        """A FIFO topic: only these keep lanes of plain messages."""
        return next(self._plain_topics)

    def fresh_timed_topic(self) -> str:
        """A topic of delayed messages: only these take a time of delivery, and nothing else."""
        return next(self._timed_topics)

    def nowhere(self, half: Half) -> Half:
        """A transaction that the proxy never gave out."""
        return replace(half, half_id="0" * 32, handle="0" * 32)


@pytest.fixture(scope="session")
def grpc_topics(rocketmq: str) -> tuple[Iterator[str], Iterator[str], Iterator[str]]:
    """The session's supply of topics: for halves, for plain messages, and for those with a timer."""
    return fresh_topics(rocketmq, "TRANSACTION"), fresh_topics(rocketmq, "FIFO"), fresh_topics(rocketmq, "DELAY")


@pytest.fixture
def grpc_rig(
    rocketmq: str, rocketmq_proxy: str, grpc_topics: tuple[Iterator[str], Iterator[str], Iterator[str]]
) -> Iterator[Rig]:
    """The session's proxy; each test has topics of its own."""
    rig = GrpcRig(rocketmq_proxy, rocketmq, *grpc_topics)
    yield rig
    rig.close()
