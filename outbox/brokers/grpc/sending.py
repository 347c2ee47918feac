"""Sends halves and plain messages through a proxy, pipelined, one wire attempt each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from grpc.aio import AioRpcError

from outbox.brokers.base import Outage, Outgoing, Prepared, Publication, Refused, Sent, Stored, Unknown
from outbox.brokers.grpc.answers import failed, is_stored, judged
from outbox.brokers.grpc.batches import Batch
from outbox.brokers.grpc.channels import Channel, Channels, Unreachable
from outbox.brokers.grpc.halves import OpenHalves
from outbox.brokers.grpc.library import Encoding, MessageType, SendMessageRequest
from outbox.brokers.grpc.routes import NoRoute, Route, Routes
from outbox.clock import monotonic
from outbox.timer import DELIVER_AT, LEVEL

Result = TypeVar("Result")

Mark = Callable[[Result | Refused | Unknown | Outage], None]

#: The proxy's own limit (``maxMessageSize``): what is larger need not travel.
_BODY_MAX: Final = 4 * 1024 * 1024
_TOO_LATE: Final = Outage("the time was over before it was sent")
_NO_ANSWER: Final = Unknown("no answer in time")


@dataclass(frozen=True, slots=True)
class Kind(Generic[Result]):
    """What tells halves from plain messages."""

    #: The message type of a message, given whether it has a message group, and whether the broker's timer delivers it.
    type_of: Callable[[bool, bool], Any]
    #: The outcome of a stored message: the message, the channel it went over, the proxy's entry.
    stored: Callable[[Outgoing, Channel, Any], Result]


def half_kind(halves: OpenHalves) -> Kind[Prepared]:
    """Half messages; ``halves`` remembers how to end them."""
    return Kind(
        lambda _grouped, _timed: MessageType.TRANSACTION,
        lambda message, channel, entry: Stored(halves.add(message, channel, entry.transaction_id)),
    )


def plain_kind() -> Kind[Publication]:
    """Plain messages; with a message group they are FIFO messages, with a moment of delivery DELAY messages."""
    return Kind(_plain_type, lambda message, _channel, _entry: Sent(message.unique_id))


def _plain_type(grouped: bool, timed: bool) -> Any:
    if timed:
        return MessageType.DELAY
    return MessageType.FIFO if grouped else MessageType.NORMAL


class Sender(Generic[Result]):
    """Sends messages of one kind; safe to use from several threads."""

    def __init__(self, channels: Channels, routes: Routes[Route], kind: Kind[Result]) -> None:
        self._channels = channels
        self._routes = routes
        self._kind = kind

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Result | Refused | Unknown | Outage]:
        """Outcomes in the order of ``messages``, within ``timeout`` seconds."""
        until = monotonic() + timeout
        metadata = self._channels.metadata()

        async def call(message: Outgoing, mark: Mark[Result]) -> Result | Refused | Unknown | Outage:
            return await self._one(message, metadata, until, mark)

        return Batch[Outgoing, Result | Refused | Unknown | Outage](messages, _TOO_LATE).run(
            self._channels, call, until
        )

    async def _one(
        self, message: Outgoing, metadata: Any, until: float, mark: Mark[Result]
    ) -> Result | Refused | Unknown | Outage:
        if not 0 < len(message.body) <= _BODY_MAX:
            return Refused(f"body: {len(message.body)} bytes; the proxy takes 1 to {_BODY_MAX}")
        if LEVEL in message.properties:
            return Refused("delay_level: a proxy takes no levels; use deliver_at, or the transport rocketmq://")
        try:
            route = await self._routes.route(message.topic, until)
            channel = self._channels.get(_choose(route, message))
            await channel.ready(until)
        except (Unreachable, NoRoute, AioRpcError) as problem:
            return _not_sent(problem)
        request = _request(message, route, self._kind)
        mark(_NO_ANSWER)
        try:
            answer = await channel.stub.SendMessage(request, metadata=metadata, timeout=max(0.0, until - monotonic()))
        except AioRpcError as error:
            return failed(error, ready=True)
        return self._read(message, channel, answer)

    def _read(self, message: Outgoing, channel: Channel, answer: Any) -> Result | Refused | Unknown | Outage:
        """The entry's own word where there is one, else the answer's."""
        for entry in answer.entries:
            if is_stored(entry.status.code):
                return self._kind.stored(message, channel, entry)
            return judged(entry.status.code, entry.status.message)
        return judged(answer.status.code, answer.status.message)


def _choose(route: Route, message: Outgoing) -> Any:
    """A lane always goes to the same proxy, which puts it into the same queue; others go anywhere."""
    if message.lane is None:
        return route.endpoints[int(message.unique_id[-4:], 16) % len(route.endpoints)]
    return route.endpoints[sum(message.lane.encode()) % len(route.endpoints)]


def _not_sent(problem: Unreachable | NoRoute | AioRpcError) -> Refused | Outage:
    """The outcome of a message that has no way to go: nothing of it left."""
    said: Refused | Unknown | Outage = Outage(str(problem))
    if isinstance(problem, NoRoute):
        said = judged(problem.code, str(problem))
    elif isinstance(problem, AioRpcError):
        said = failed(problem, ready=False)
    return Outage(said.reason) if isinstance(said, Unknown) else said


def _request(message: Outgoing, route: Route, kind: Kind[Any]) -> Any:
    """SendMessage with one message. Its id is ours: the proxy stores it as UNIQ_KEY.

    A message group keeps a lane in one queue: the proxy chooses the queue by it for halves as well. Topics that take
    FIFO messages only want one for every message.
    """
    request = SendMessageRequest()
    sent = request.messages.add()
    sent.topic.name = message.topic
    sent.body = message.body
    properties = dict(message.properties)
    deliver_at = properties.pop(DELIVER_AT, None)
    sent.user_properties.update(properties)
    group = message.lane or (message.unique_id if route.fifo else "")
    system = sent.system_properties
    if deliver_at is not None:
        system.delivery_timestamp.FromMilliseconds(int(deliver_at))
    system.message_id = message.unique_id
    system.message_type = kind.type_of(bool(group), deliver_at is not None)
    system.body_encoding = Encoding.IDENTITY
    system.keys.append(message.key)
    system.message_group = group
    if message.tag:
        system.tag = message.tag
    born = Timestamp()
    born.GetCurrentTime()
    system.born_timestamp.CopyFrom(born)
    return request
