"""The native transport under the contract suite: the same broker and topics as the remoting transport's."""

from collections.abc import Iterator

import pytest

from outbox.brokers.base import Broker
from outbox.brokers.native.broker import NativeBroker
from outbox.brokers.native.library import load
from outbox.brokers.native.source import PushSource
from outbox.brokers.source import Source
from outbox.settings import load as load_settings
from outbox.wiring import open_source
from tests.contracts.remoting_rig import RemotingRig
from tests.contracts.rig import Rig
from tests.services.librocketmq import librocketmq
from tests.services.ports import free_port
from tests.services.require import require
from tests.services.rocketmq import create_topics


class NativeRig(RemotingRig):
    """Sends and receives through the C++ client; what is seen goes over the remoting protocol."""

    exclusive = False
    orderly = False
    #: Two of the broker's delay levels.
    delays = (1.0, 5.0)

    def open(self, group: str) -> Broker:
        """A connection to the cluster."""
        return self._keep(self._broker(self._namesrv, group))

    def away(self, group: str) -> Broker:
        """A connection to a name server that is not there."""
        return self._keep(self._broker(f"127.0.0.1:{free_port()}", group))

    def source(self, topic: str, group: str, invisible: float) -> Source:
        """A push consumer of the C++ client; its group has a retry topic, which it would find half a minute late."""
        create_topics(self._namesrv, [f"%RETRY%{group}"], queues=1)
        source = PushSource(self._namesrv, group, [topic], load(str(require(librocketmq))), invisible=invisible)
        self._opened.append(source)
        return source

    def orderly_source(self, topic: str, group: str, invisible: float) -> Source:
        """As a deployment would open one."""
        asked = load_settings(
            broker_url=f"rocketmq+native://{self._namesrv}", origin="orders", invisible=invisible, orderly=True
        )
        return open_source(asked, [topic], group)

    @staticmethod
    def _broker(name_servers: str, group: str) -> NativeBroker:
        return NativeBroker(name_servers, group, load(str(require(librocketmq))), threads=16)


@pytest.fixture
def native_rig(rocketmq: str, remoting_topics: Iterator[str]) -> Iterator[Rig]:
    """The session's cluster; each test has topics and groups of its own."""
    rig = NativeRig(rocketmq, remoting_topics)
    yield rig
    rig.close()
