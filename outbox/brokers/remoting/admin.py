"""What tests, ``doctor`` and first runs ask of a cluster: topics, groups, settings, the messages of a topic."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import DIAL_TIMEOUT, Connections, Denied
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.brokers.remoting.stored import StoredMessage, decode_messages

_READ_WRITE: Final = 6
#: A pull names its filter itself (``PullSysFlag.FLAG_SUBSCRIPTION``).
_WITH_SUBSCRIPTION: Final = 4
#: Group of pulls that leave no trace at the broker (``MixAll.TOOLS_CONSUMER_GROUP``).
_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_PULL_FOUND: Final = 0
_PULL_OFFSET_MOVED: Final = 21


def split_addresses(name_servers: str) -> list[str]:
    """The name servers of ``host:9876;host2:9876``; ``ValueError`` where one is not ``host:port``."""
    addresses = [part.strip() for part in name_servers.split(";") if part.strip()]
    wrong = [address for address in addresses if not address.rpartition(":")[2].isdigit() or address.startswith(":")]
    if wrong or not addresses:
        raise ValueError(f"name servers {name_servers!r}: write host:port, several with ';' between them")
    return addresses


class Admin:
    """Questions and orders to a cluster; every call raises ``RemotingError`` where a server does not do its part."""

    def __init__(self, name_servers: str, connections: Connections | None = None) -> None:
        self._connections = connections or Connections()
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

    def _read_queue(self, address: str, topic: str, queue: int) -> Iterator[StoredMessage]:
        offset = 0
        while True:
            answer = self._connections.call(address, Request.PULL_MESSAGE, pull_fields(topic, queue, offset))
            if answer.code == _PULL_FOUND:
                yield from decode_messages(answer.body)
            elif answer.code != _PULL_OFFSET_MOVED:
                return
            following = int(answer.ext["nextBeginOffset"])
            if following <= offset:
                return
            offset = following


def runtime(connections: Connections, address: str, timeout: float = DIAL_TIMEOUT) -> Mapping[str, str]:
    """The broker's runtime figures (``KVTable``), within ``timeout`` seconds; ``RemotingError``."""
    answer = connections.ask(address, Request.RUNTIME_INFO, {}, timeout=timeout)
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


def config(
    connections: Connections, address: str, keys: Collection[str], timeout: float = DIAL_TIMEOUT
) -> Mapping[str, str]:
    """The settings ``keys`` from the broker's ``name=value`` lines, within ``timeout`` seconds; ``RemotingError``."""
    answer = connections.ask(address, Request.BROKER_CONFIG, {}, timeout=timeout)
    pairs = (line.partition("=") for line in answer.body.decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip() in keys}


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


def pull_fields(topic: str, queue: int, offset: int) -> dict[str, str]:
    """A request for what lies in a queue from ``offset`` on, as RocketMQ's tools ask (``PullMessageRequestHeader``)."""
    return {
        "consumerGroup": _TOOLS_GROUP,
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(_WITH_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def masters_of(routes: Routes, topics: Sequence[str]) -> Mapping[str, str]:
    """Name and address of each master that has one of ``topics`` (none named: of every master that is known).

    Topics without a route are left out.
    """
    if not topics:
        return routes.brokers()
    found: dict[str, str] = {}
    for topic in topics:
        try:
            found.update(routes.route(topic).masters)
        except NoRoute:
            continue
    return found
