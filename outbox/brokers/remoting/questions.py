"""What brokers are asked as RocketMQ's own tools ask: their figures, their settings, what lies in a queue."""

import json
from collections.abc import Collection, Mapping
from typing import Final

from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connections import DIAL_TIMEOUT, Connections

#: A pull names its filter itself (``PullSysFlag.FLAG_SUBSCRIPTION``).
_WITH_SUBSCRIPTION: Final = 4
#: Group of pulls that leave no trace at the broker (``MixAll.TOOLS_CONSUMER_GROUP``).
_TOOLS_GROUP: Final = "TOOLS_CONSUMER"


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
