"""What tests ask of a cluster, and have it make: topics, groups, the messages of a topic."""

import json
from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import Connections, Denied
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.questions import config, pull_fields, runtime
from outbox.brokers.remoting.routes import NoRoute, Routes, split_addresses
from outbox.brokers.remoting.stored import StoredMessage, decode_messages
from tests.waiting import expect_soon

_READ_WRITE: Final = 6
_PULL_FOUND: Final = 0
#: ``PULL_RETRY_IMMEDIATELY``, ``PULL_OFFSET_MOVED``: nothing here, there may be more at the offset that is told.
_PULL_GO_ON: Final = (20, 21)
#: ``PULL_NOT_FOUND``: the end of the queue.
_PULL_END: Final = 19
#: Seconds for an answer: a busy machine lets a server stand still for longer than a client would wait.
_PATIENCE: Final = 30.0


class PatientConnections(Connections):
    """For what tests ask and arrange: a server that answers late is no fault to find there."""

    def call(
        self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"", *, timeout: float = _PATIENCE
    ) -> Frame:
        """As the product's, and waits for longer."""
        return super().call(address, code, ext, body, timeout=max(timeout, _PATIENCE))


class Admin:
    """Questions and orders to a cluster; every call raises ``RemotingError`` where a server does not do its part."""

    def __init__(self, name_servers: str, connections: Connections | None = None) -> None:
        self._connections = connections or PatientConnections()
        self.routes = Routes(split_addresses(name_servers), self._connections)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        self._connections.close()

    def brokers(self) -> Mapping[str, str]:
        """Name and address of each master in the cluster."""
        return self.routes.brokers()

    def create_topic(
        self, address: str, topic: str, *, queues: int = 8, perm: int = _READ_WRITE, attributes: str = ""
    ) -> None:
        """Creates or changes one topic at one broker; ``attributes`` such as ``+message.type=TRANSACTION``."""
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": attributes,
        }
        self._connections.ask(address, Request.CREATE_TOPIC, ext)

    def create_topics(
        self, address: str, topics: Collection[str], *, queues: int = 8, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Creates several topics at one broker in one request (5.x), one by one where it does not know that.

        ``attributes`` such as ``{"+message.type": "TRANSACTION"}``; 5.x only.
        """
        extra = {"attributes": attributes} if attributes else {}
        configs = [_topic_config(topic, queues) | extra for topic in topics]
        body = json.dumps({"topicConfigList": configs}).encode()
        try:
            self._connections.ask(address, Request.CREATE_TOPICS, {}, body)
        except Denied as denied:
            if denied.code != Code.UNSUPPORTED:
                raise
            for topic in topics:
                self.create_topic(address, topic, queues=queues)

    def create_group(self, address: str, group: str, *, orderly: bool = False) -> None:
        """Creates a consumer group at one broker; ``orderly``: a FIFO group for proxies."""
        config = {
            "groupName": group,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "retryMaxTimes": 16,
            "consumeMessageOrderly": orderly,
        }
        self._connections.ask(address, Request.CREATE_GROUP, {}, json.dumps(config).encode())

    def runtime(self, address: str) -> Mapping[str, str]:
        """The broker's runtime figures."""
        return runtime(self._connections, address)

    def config(self, address: str, keys: Collection[str]) -> Mapping[str, str]:
        """The named settings of the broker; the others, passwords among them, are dropped on receipt."""
        return config(self._connections, address, keys)

    def read(self, topic: str) -> Iterator[StoredMessage]:
        """Every message that lies in the topic now, queue by queue; nothing for an unknown topic."""
        try:
            route = self.routes.route(topic)
        except NoRoute:
            return
        for broker, queues in sorted(route.readable.items()):
            for queue in range(queues):
                yield from self._read_queue(route.masters[broker], topic, queue)

    def read_soon(self, topic: str, count: int = 1, *, within: float = 60.0) -> list[StoredMessage]:
        """As ``read``, once there are so many: the broker shows what it has stored, and a new topic, a moment later."""
        read: list[StoredMessage] = []

        def is_there() -> bool:
            read[:] = self.read(topic)
            return len(read) >= count

        expect_soon(is_there, f"{count} messages lie in {topic}", within=within)
        return read

    def _read_queue(self, address: str, topic: str, queue: int) -> Iterator[StoredMessage]:
        offset = 0
        while True:
            answer = self._connections.call(address, Request.PULL_MESSAGE, pull_fields(topic, queue, offset))
            if answer.code == _PULL_END:
                return
            if answer.code == _PULL_FOUND:
                yield from decode_messages(answer.body)
            elif answer.code not in _PULL_GO_ON:  # busy, say: what was read so far is not all
                raise Denied(address, answer)
            following = int(answer.ext["nextBeginOffset"])
            if following <= offset:
                return
            offset = following


def _topic_config(topic: str, queues: int) -> dict[str, Any]:
    return {
        "topicName": topic,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": _READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
