"""Where the messages of a topic go: asked of the proxy, kept for half a minute."""

from dataclasses import dataclass
from typing import Any, Final

from outbox.brokers.grpc.channels import Channels, endpoints_of
from outbox.brokers.grpc.library import Code, MessageType, Permission, QueryRouteRequest
from outbox.clock import monotonic

#: Seconds; the Java client asks again as often.
_FRESH: Final = 30.0
_TOPICS_MAX: Final = 10_000
_WRITABLE: Final = (Permission.WRITE, Permission.READ_WRITE)


@dataclass(frozen=True, slots=True)
class Route:
    """Where to send to, and what the topic takes."""

    #: Endpoints of the proxies before its brokers; with a proxy in cluster mode the address that was dialled.
    endpoints: tuple[Any, ...]
    #: Whether every message needs a message group (``message.type=FIFO``).
    fifo: bool
    at: float


class NoRoute(Exception):
    """The proxy answered, and its answer is no route; the text says why."""

    def __init__(self, topic: str, code: int, message: str) -> None:
        super().__init__(f"topic {topic}: {message}")
        self.code = code


class Routes:
    """Routes as one client knows them; belongs on the event loop."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._known: dict[str, Route] = {}

    async def route(self, topic: str, until: float) -> Route:
        """The topic's route; raises ``NoRoute``, ``Unreachable``, or what gRPC raises."""
        known = self._known.get(topic)
        if known is not None and monotonic() - known.at < _FRESH:
            return known
        route = await self._ask(topic, until)
        if len(self._known) >= _TOPICS_MAX:
            self._known.clear()
        self._known[topic] = route
        return route

    async def _ask(self, topic: str, until: float) -> Route:
        access_point = self._channels.access_point
        channel = self._channels.get(access_point)
        await channel.ready(until)
        request = QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.CopyFrom(access_point.endpoints)
        answer = await channel.stub.QueryRoute(request, metadata=self._channels.metadata(), timeout=until - monotonic())
        if answer.status.code != Code.OK:
            raise NoRoute(topic, answer.status.code, answer.status.message)
        return _route(topic, answer.message_queues)


def _route(topic: str, queues: Any) -> Route:
    writable = [queue for queue in queues if queue.permission in _WRITABLE and queue.broker.id == 0]
    if not writable:
        raise NoRoute(topic, Code.TOPIC_NOT_FOUND, "no queue of a master may be written to")
    brokers = {str(queue.broker.endpoints): queue.broker.endpoints for queue in writable}
    types = {kind for queue in writable for kind in queue.accept_message_types}
    endpoints = tuple(endpoints_of(brokers[name]) for name in sorted(brokers))
    return Route(endpoints, MessageType.FIFO in types and MessageType.NORMAL not in types, monotonic())
