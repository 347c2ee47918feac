"""Where the messages of a topic go and come from: asked of the proxy, kept for half a minute."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from outbox.brokers.grpc.channels import Channels, endpoints_of
from outbox.brokers.grpc.library import Code, MessageType, Permission, QueryRouteRequest
from outbox.clock import monotonic

#: Seconds; the Java client asks again as often.
_FRESH: Final = 30.0
_TOPICS_MAX: Final = 10_000
_WRITABLE: Final = (Permission.WRITE, Permission.READ_WRITE)
_READABLE: Final = (Permission.READ, Permission.READ_WRITE)


class Reachable(Protocol):
    """What leads to proxies."""

    @property
    def endpoints(self) -> tuple[Any, ...]:
        """Those of the proxies; with a proxy in cluster mode the address that was dialled."""
        ...


Way = TypeVar("Way", bound=Reachable)


@dataclass(frozen=True, slots=True)
class Route:
    """Where to send to, and what the topic takes."""

    #: Endpoints of the proxies before its brokers.
    endpoints: tuple[Any, ...]
    #: Whether every message needs a message group (``message.type=FIFO``).
    fifo: bool


@dataclass(frozen=True, slots=True)
class Origins:
    """Where to receive from."""

    #: Endpoints of the proxy before each broker, by the broker's name.
    brokers: Mapping[str, Any]

    @property
    def endpoints(self) -> tuple[Any, ...]:
        """Of all the brokers."""
        return tuple(self.brokers.values())


class NoRoute(Exception):
    """The proxy answered, and its answer is no route; the text says why."""

    def __init__(self, topic: str, code: int, message: str) -> None:
        super().__init__(f"topic {topic}: {message}")
        self.code = code


class Routes(Generic[Way]):
    """Routes as one client knows them; belongs on the event loop."""

    def __init__(self, channels: Channels, read: Callable[[str, Any], Way]) -> None:
        """``read``: makes a route of a topic and its queues; ``writable`` and ``readable`` do."""
        self._channels = channels
        self._read = read
        self._known: dict[str, tuple[Way, float]] = {}

    async def route(self, topic: str, until: float) -> Way:
        """The topic's route; raises ``NoRoute``, ``Unreachable``, or what gRPC raises."""
        known = self._known.get(topic)
        if known is not None and monotonic() - known[1] < _FRESH:
            return known[0]
        route = self._read(topic, await self._ask(topic, until))
        if len(self._known) >= _TOPICS_MAX:
            self._known.clear()
        self._known[topic] = route, monotonic()
        return route

    async def _ask(self, topic: str, until: float) -> Any:
        access_point = self._channels.access_point
        channel = self._channels.get(access_point)
        await channel.ready(until)
        request = QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.CopyFrom(access_point.endpoints)
        answer = await channel.stub.QueryRoute(request, metadata=self._channels.metadata(), timeout=until - monotonic())
        if answer.status.code != Code.OK:
            raise NoRoute(topic, answer.status.code, answer.status.message)
        return answer.message_queues


def writable(topic: str, queues: Any) -> Route:
    """The route of what is sent."""
    found = [queue for queue in queues if queue.permission in _WRITABLE and queue.broker.id == 0]
    if not found:
        raise NoRoute(topic, Code.TOPIC_NOT_FOUND, "no queue of a master may be written to")
    brokers = {str(queue.broker.endpoints): queue.broker.endpoints for queue in found}
    types = {kind for queue in found for kind in queue.accept_message_types}
    endpoints = tuple(endpoints_of(brokers[name]) for name in sorted(brokers))
    return Route(endpoints, MessageType.FIFO in types and MessageType.NORMAL not in types)


def readable(topic: str, queues: Any) -> Origins:
    """The route of what is received."""
    found = {
        queue.broker.name: queue.broker.endpoints
        for queue in queues
        if queue.permission in _READABLE and queue.broker.id == 0
    }
    if not found:
        raise NoRoute(topic, Code.TOPIC_NOT_FOUND, "no queue of a master may be read")
    return Origins({name: endpoints_of(found[name]) for name in sorted(found)})
