"""Where a message lies that the client has pulled, and what it holds: the broker is asked, not the client.

The client's getters cut bodies at a zero byte, tell no length, and list no properties.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import Connections, Denied, RemotingError
from outbox.brokers.remoting.questions import pull_fields
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.brokers.remoting.stored import StoredMessage, decode_messages

#: PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED (``ResponseCode``).
NOTHING_THERE: Final = frozenset((19, 20, 21))
_RETRIES: Final = "%RETRY%{group}"


@dataclass(frozen=True, slots=True)
class Pulled:
    """What the client says of a message: enough to find it, not by which broker."""

    topic: str
    queue: int
    queue_offset: int
    commit_log_offset: int
    #: The client counts its own attempts as well.
    is_retry: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message lies."""

    address: str
    #: The topic of its queue: the group's retry topic for a message that came again.
    topic: str
    commit_log_offset: int
    unique_id: str


class Places:
    """Finds what one group has pulled; safe to use from several threads."""

    def __init__(self, connections: Connections, routes: Routes, group: str) -> None:
        self._connections = connections
        self._routes = routes
        self._group = group
        self._retries = _RETRIES.format(group=group)
        #: The broker whose queue was asked last is likely the next one: batches come from one queue.
        self._last: dict[tuple[str, int], str] = {}

    def find(self, pulled: Pulled) -> tuple[Place, StoredMessage] | None:
        """The place and the message; None: no broker that can be asked has it. ``RemotingError``: one cannot be."""
        for topic in self._topics(pulled):
            for address in self._masters(topic, pulled.queue):
                message = self._at(address, topic, pulled)
                if message is not None:
                    self._last[topic, pulled.queue] = address
                    unique_id = message.properties.get("UNIQ_KEY", "")
                    return Place(address, topic, pulled.commit_log_offset, unique_id), message
        return None

    def _topics(self, pulled: Pulled) -> Sequence[str]:
        return (self._retries, pulled.topic) if pulled.is_retry else (pulled.topic,)

    def _masters(self, topic: str, queue: int) -> Iterator[str]:
        """Masters that have the queue, the likeliest first."""
        try:
            route = self._routes.route(topic)
        except NoRoute:
            return
        likely = self._last.get((topic, queue))
        having = [route.masters[broker] for broker, queues in route.readable.items() if queue < queues]
        yield from sorted(having, key=lambda address: address != likely)

    def _at(self, address: str, topic: str, pulled: Pulled) -> StoredMessage | None:
        """The message, if this broker has it: two brokers may have a queue of that number, not at one offset."""
        one = {"consumerGroup": self._group, "maxMsgNums": "1"}
        fields = pull_fields(topic, pulled.queue, pulled.queue_offset) | one
        try:
            answer = self._connections.call(address, Request.PULL_MESSAGE, fields)
        except RemotingError:
            self._routes.doubt(address)
            raise
        if answer.code in NOTHING_THERE:
            return None
        if answer.code != Code.SUCCESS:
            raise Denied(address, answer)
        for message in decode_messages(answer.body):
            if message.commit_log_offset == pulled.commit_log_offset:
                return message
        return None
