"""ReceiveMessage requests in flight: one for each topic and broker, left alone until its answer is whole.

A proxy polls for five seconds at least, whatever is asked (``grpcClientConsumerMinLongPollingTimeoutMillis``), so polls
outlast the calls that started them.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from grpc.aio import AioRpcError

from outbox.brokers.grpc.channels import Channels, Unreachable
from outbox.brokers.grpc.library import Code, FilterType, ReceiveMessageRequest
from outbox.brokers.grpc.messages import Corrupted, delivery_of
from outbox.brokers.grpc.registration import Registration
from outbox.brokers.grpc.routes import NoRoute, Origins, Routes
from outbox.brokers.source import Delivery, unexpired
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: The proxy's limit of messages for one poll.
_MOST: Final = 32
#: Seconds that a proxy polls at least, and that an answer may take beyond its poll.
_POLL: Final = 5.0
_GRACE: Final = 3.0
#: Seconds that a topic at a broker rests after a failure.
_REST: Final = 1.0

_REMEDIES: Final[Mapping[int, str]] = {
    Code.ILLEGAL_INVISIBLE_TIME: " (raise OUTBOX_INVISIBLE: a proxy wants 10 s, its minInvisibleTimeMillsForRecv)",
    Code.UNAUTHORIZED: " (check OUTBOX_ACCESS_KEY, OUTBOX_SECRET_KEY and the user's rights)",
    Code.FORBIDDEN: " (check the user's rights to the topic and the group)",
    Code.TOPIC_NOT_FOUND: " (create the topic)",
    Code.CONSUMER_GROUP_NOT_FOUND: " (create the group: mqadmin updateSubGroup)",
}


class Polls:
    """The polls of one consumer group; ``arrived`` and ``take`` serve the thread that receives, the rest the loop."""

    def __init__(
        self,
        channels: Channels,
        routes: Routes[Origins],
        registration: Registration,
        group: str,
        topics: Mapping[str, str],
        invisible: float,
        *,
        orderly: bool = False,
    ) -> None:
        """``topics``: the tag expression of each topic; ``registration``: only proxies that know us are polled.

        ``orderly``: one message at a time, since the broker blocks a queue until all of what it gave out has an end.
        """
        self._channels = channels
        self._routes = routes
        self._registration = registration
        self._group = group
        self._topics = topics
        self._invisible = invisible
        self._most = 1 if orderly else _MOST
        self._orderly = orderly
        self._ready: deque[Delivery] = deque()
        self._polls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._resting: dict[tuple[str, str], float] = {}
        self._troubles: dict[tuple[str, str], str] = {}
        self._looking: set[str] = set()
        self._closed = False
        #: Set when a poll has ended.
        self.arrived = threading.Event()

    def take(self, limit: int) -> list[Delivery]:
        """Up to ``limit`` deliveries that have arrived and have not expired while they waited here."""
        return unexpired(self._ready, limit)

    async def start(self, limit: int) -> None:
        """Polls every topic and broker that is not polled yet; one topic's trouble does not hold up the others."""
        starts = (self._start(topic, limit) for topic in self._topics if topic not in self._looking)
        for problem in filter(None, await asyncio.gather(*starts, return_exceptions=True)):
            log.error("a poll was not started", exc_info=problem)

    async def close(self) -> None:
        """Cancels what is in flight: what a proxy has for us then comes again after a second."""
        self._closed = True
        polls = list(self._polls.values())
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _start(self, topic: str, limit: int) -> None:
        self._looking.add(topic)
        try:
            for broker, endpoints in (await self._brokers(topic)).items():
                if self._is_due(topic, broker, endpoints):
                    work = self._poll(topic, broker, endpoints, limit)
                    self._polls[topic, broker] = asyncio.ensure_future(work)
        finally:
            self._looking.discard(topic)

    def _is_due(self, topic: str, broker: str, endpoints: Any) -> bool:
        free = (
            not self._closed
            and (topic, broker) not in self._polls
            and self._resting.get((topic, broker), 0.0) < monotonic()
        )
        return free and self._registration.holds(topic, endpoints)

    async def _brokers(self, topic: str) -> Mapping[str, Any]:
        """The endpoints by broker; none while the topic has no route."""
        if self._resting.get((topic, ""), 0.0) > monotonic():
            return {}
        try:
            brokers = (await self._routes.route(topic, monotonic() + _GRACE)).brokers
        except (Unreachable, NoRoute, AioRpcError) as problem:
            self._tell(topic, "", _words(problem))
            return {}
        self._tell(topic, "", "")
        return brokers

    async def _poll(self, topic: str, broker: str, endpoints: Any, limit: int) -> None:
        try:
            trouble = await self._receive(topic, broker, endpoints, limit)
        except (Unreachable, AioRpcError) as problem:
            trouble = _words(problem)
        except asyncio.CancelledError:
            trouble = "the connection was closed"  # by ``Channels.drop`` or ``close``: gRPC's way to say so
        except Exception as problem:
            log.exception("a poll failed unexpectedly")
            trouble = repr(problem)
        finally:
            del self._polls[topic, broker]
            self.arrived.set()
        self._tell(topic, broker, trouble)

    def _tell(self, topic: str, broker: str, trouble: str) -> None:
        """Lets a topic (at a broker) rest that is in trouble; says what is wrong when it changes, not once a second."""
        if trouble and not self._closed:
            self._resting[topic, broker] = monotonic() + _REST
            if self._troubles.get((topic, broker)) != trouble:
                log.warning("nothing is received from topic %s at broker %s: %s", topic, broker or "any", trouble)
        self._troubles[topic, broker] = trouble

    async def _receive(self, topic: str, broker: str, endpoints: Any, limit: int) -> str:
        """One poll; why it was refused, or "". The invisible time counts from the moment before it was asked for."""
        channel = self._channels.get(endpoints)
        until = monotonic() + self._invisible
        poll = min(_POLL, self._invisible / 3)
        call = channel.stub.ReceiveMessage(
            self._request(topic, broker, min(limit, self._most), poll),
            metadata=self._channels.metadata(),
            timeout=_POLL + _GRACE,
        )
        reason = ""
        async for answer in call:
            kind = answer.WhichOneof("content")
            if kind == "message":
                self._take(answer.message, topic, broker, endpoints.facade, until)
            elif kind == "status" and answer.status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                code = answer.status.code
                reason = f"code {code}: {answer.status.message}{_REMEDIES.get(code, '')}"
        return reason

    def _take(self, message: Any, topic: str, broker: str, facade: str, until: float) -> None:
        lane = f"{topic}@{broker}/{message.system_properties.queue_id}" if self._orderly else None
        try:
            self._ready.append(replace(delivery_of(message, topic, facade, until), lane=lane))
        except Corrupted as problem:
            log.error(  # noqa: TRY400 -- the reason is all there is to know
                "message %s of topic %s is not delivered, it comes again until the proxy buries it: %s",
                message.system_properties.message_id,
                topic,
                problem,
            )

    def _request(self, topic: str, broker: str, limit: int, poll: float) -> Any:
        request = ReceiveMessageRequest()
        request.group.name = self._group
        request.message_queue.topic.name = topic
        request.message_queue.broker.name = broker
        request.filter_expression.type = FilterType.TAG
        request.filter_expression.expression = self._topics[topic]
        request.batch_size = max(1, limit)
        request.invisible_duration.FromMilliseconds(int(self._invisible * 1000))
        request.long_polling_timeout.FromMilliseconds(int(poll * 1000))
        return request


def _words(problem: Exception) -> str:
    return f"{problem.code().name}: {problem.details()}" if isinstance(problem, AioRpcError) else str(problem)
