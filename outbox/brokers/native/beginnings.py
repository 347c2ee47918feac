"""Lets a new group begin at the beginning: the client begins at the end, and offers no choice."""

from collections.abc import Iterable
from typing import Final

from outbox.brokers.native.places import NOTHING_THERE
from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import Connections, Denied
from outbox.brokers.remoting.questions import pull_fields
from outbox.brokers.remoting.routes import NoRoute, Routes

_ANSWERS: Final = NOTHING_THERE | {Code.SUCCESS}


class Beginnings:
    """Sets the group's offset in each queue where it has none."""

    def __init__(self, connections: Connections, routes: Routes, group: str) -> None:
        self._connections = connections
        self._routes = routes
        self._group = group

    def ensure(self, topics: Iterable[str]) -> None:
        """``RemotingError`` where a broker cannot be asked; topics that do not exist yet are left out."""
        for topic in topics:
            try:
                route = self._routes.route(topic)
            except NoRoute:
                continue
            for broker, queues in route.readable.items():
                for queue in range(queues):
                    self._ensure(route.masters[broker], topic, queue)

    def _ensure(self, address: str, topic: str, queue: int) -> None:
        first = self._first(address, topic, queue)
        fields = {"consumerGroup": self._group, "topic": topic, "queueId": str(queue)}
        known = self._connections.call(address, Request.QUERY_CONSUMER_OFFSET, fields)
        if known.code == Code.SUCCESS:
            return
        if known.code != Code.QUERY_NOT_FOUND:
            raise Denied(address, known)
        self._connections.ask(address, Request.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": first})

    def _first(self, address: str, topic: str, queue: int) -> str:
        """The lowest offset of the queue; a pull in the group's name also creates the group, where brokers may."""
        fields = pull_fields(topic, queue, 0) | {"consumerGroup": self._group, "maxMsgNums": "1"}
        answer = self._connections.call(address, Request.PULL_MESSAGE, fields)
        if answer.code not in _ANSWERS:
            raise Denied(address, answer)
        return str(answer.ext["minOffset"])
