"""Sends half messages and plain messages: placed on queues, pipelined, one wire attempt each."""

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Generic

from outbox import faults
from outbox.brokers.base import Outage, Outgoing, Refused, Unknown
from outbox.brokers.remoting.commands import NUMBER, STORED, TEXT, Code, Request, Template, quote, refusal
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.frames import MAX_FRAME, Frame
from outbox.brokers.remoting.kinds import Kind, Outcome
from outbox.brokers.remoting.pipeline import Answers, each, exchange
from outbox.brokers.remoting.routes import NoRoute, Queue, Route, Routes
from outbox.brokers.remoting.stored import encode_properties
from outbox.brokers.remoting.window import CAP, Window
from outbox.clock import monotonic

Failure = Refused | Unknown | Outage

#: Bytes of bodies that are encoded at once.
_PIECE: Final = 8 * 1024 * 1024
#: What a frame may hold beside the body: the broker's limit is that of a frame, and properties stay below 32 KiB.
_BODY_MAX: Final = MAX_FRAME - 256 * 1024
_TEMPLATES_MAX: Final = 1000
_REFUSALS: Final = frozenset((Code.MESSAGE_ILLEGAL, Code.NO_PERMISSION, Code.TOPIC_NOT_EXIST))
_OUTAGES: Final = frozenset((Code.BUSY, Code.SERVICE_NOT_AVAILABLE))


@dataclass(slots=True)
class _Share:
    """The messages of one batch that go to one broker."""

    broker: str
    address: str
    #: Place in the batch, message, queue.
    items: list[tuple[int, Outgoing, int]] = field(default_factory=list)


class Sender(Generic[Outcome]):
    """Sends messages of one kind; safe to use from several threads."""

    def __init__(
        self, connections: Connections, routes: Routes, group: str, kind: Kind[Outcome], pool: Executor, cap: int = CAP
    ) -> None:
        self._connections = connections
        self._routes = routes
        self._group = group
        self._kind = kind
        self._pool = pool
        self._cap = cap
        self._turn = itertools.count()
        self._windows: dict[str, Window] = {}
        self._templates: dict[str, Template] = {}

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Outcome | Failure]:
        """Outcomes in the order of ``messages``, within ``timeout`` seconds."""
        until = monotonic() + timeout
        outcomes: list[Outcome | Failure] = [Outage("not sent in time")] * len(messages)
        shares = self._share(messages, outcomes, until)
        each(self._pool, lambda share: self._send_share(share, outcomes, until), shares)
        return outcomes

    def _share(self, messages: Sequence[Outgoing], outcomes: list[Outcome | Failure], until: float) -> Sequence[_Share]:
        """Places every message on a queue; what has no place gets its outcome."""
        shares: dict[str, _Share] = {}
        routes: dict[str, Route | Failure] = {}
        for index, message in enumerate(messages):
            topic = message.topic
            route = routes.get(topic)
            if route is None:
                route = routes[topic] = self._route(topic, until)
            if not isinstance(route, Route):
                outcomes[index] = route
                continue
            queue = self._place(message, route)
            share = shares.get(queue.address)
            if share is None:
                share = shares[queue.address] = _Share(queue.broker, queue.address)
            share.items.append((index, message, queue.queue_id))
        return list(shares.values())

    def _place(self, message: Outgoing, route: Route) -> Queue:
        if message.lane is not None:
            return route.lane(message.lane)
        return route.writable[next(self._turn) % len(route.writable)]

    def _route(self, topic: str, until: float) -> Route | Failure:
        """The topic's route with at least one queue to write to, or why there is none.

        A cluster that has brokers and does not know the topic refuses it. A topic without a writable queue is an
        outage: its master is down, or an operator has closed it for a while.
        """
        try:
            route = self._routes.route(topic, until)
        except RemotingError as problem:
            return Outage(str(problem))
        except NoRoute as problem:
            return self._unknown_topic(problem)
        if route.writable:
            return route
        return Outage(f"topic {topic}: no queue is writable (broker's master down, or perm without W)")

    def _unknown_topic(self, problem: NoRoute) -> Failure:
        try:
            known = self._routes.brokers()
        except RemotingError as trouble:
            return Outage(str(trouble))
        if not known:
            return Outage(f"{problem}; no broker is registered there")
        return Refused(f"{problem}; create it (mqadmin updateTopic)")

    def _send_share(self, share: _Share, outcomes: list[Outcome | Failure], until: float) -> None:
        window = self._windows.get(share.broker) or self._windows.setdefault(share.broker, Window(self._cap))
        items = self._sendable(share.items, outcomes)
        start = 0
        while start < len(items):
            places = window.take(_within(items, start), until)
            if not places:
                return
            busy = True
            try:
                busy = self._send_chunk(share, items[start : start + places], outcomes, until)
            finally:
                window.give_back(places, busy=busy)
            start += places
            if start < len(items):
                faults.point("sending.between_chunks")

    def _sendable(
        self, items: Sequence[tuple[int, Outgoing, int]], outcomes: list[Outcome | Failure]
    ) -> list[tuple[int, Outgoing, int, str]]:
        """Adds the properties in wire form; what would break the frame or the properties is refused here."""
        sendable = []
        fixed = self._kind.properties
        for index, message, queue in items:
            own = {"KEYS": message.key, "UNIQ_KEY": message.unique_id}
            if message.tag is not None:
                own["TAGS"] = message.tag
            properties = encode_properties({**message.properties, **own})
            count = len(message.properties.keys() | own.keys())
            if properties.count("\x01") != count or properties.count("\x02") != count:
                outcomes[index] = Refused("properties, key or tag: a character \\x01 or \\x02 cannot be carried")
            elif not 0 < len(message.body) <= _BODY_MAX:
                size = len(message.body)
                outcomes[index] = Refused(
                    f"body of {size} bytes: 1 to {_BODY_MAX} can be carried; give it content, or less"
                )
            else:
                sendable.append((index, message, queue, properties + fixed))
        return sendable

    def _send_chunk(
        self,
        share: _Share,
        items: Sequence[tuple[int, Outgoing, int, str]],
        outcomes: list[Outcome | Failure],
        until: float,
    ) -> bool:
        """Sends, and fills the outcomes in; whether the broker was busy, or did not answer."""

        def encode(first: int) -> list[bytes]:
            """The requests of the chunk."""
            born = int(time.time() * 1000)
            return [
                self._template(message.topic).frame(opaque, (queue, born, quote(properties)), message.body)
                for opaque, (_, message, queue, properties) in enumerate(items, first)
            ]

        answers = exchange(self._connections, share.address, len(items), encode, until)
        for place, (index, message, _, _) in enumerate(items):
            answer = answers.frames[place]
            if answer is not None and answer.code in STORED:
                outcomes[index] = self._kind.stored(message, share.broker, answer)
            else:
                outcomes[index] = failure(answer, answers, place)
        if answers.reason:
            self._routes.doubt(share.address)
        return any(answer is None or answer.code == Code.BUSY for answer in answers.frames)

    def _template(self, topic: str) -> Template:
        template = self._templates.get(topic)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[topic] = _send_template(self._group, topic, self._kind.flag, self._connections)
        return template


def failure(answer: Frame | None, answers: Answers, place: int) -> Failure:
    """What an answer other than "stored", or none, says about the message at this place of a batch."""
    if answer is None:
        return Unknown(answers.reason) if place < answers.written else Outage(answers.reason or "not sent in time")
    reason = refusal(answer.code, answer.remark)
    if answer.code in _REFUSALS:
        return Refused(reason)
    return Outage(reason) if answer.code in _OUTAGES else Unknown(reason)


def _within(items: Sequence[tuple[int, Outgoing, int, str]], start: int) -> int:
    """How many items from ``start`` on have bodies of a few megabytes together, at least one."""
    size = 0
    for stop in range(start, len(items)):
        size += len(items[stop][1].body)
        if size > _PIECE:
            return max(1, stop - start)
    return len(items) - start


def _send_template(group: str, topic: str, flag: int, connections: Connections) -> Template:
    """SEND_MESSAGE_V2 (``SendMessageRequestHeaderV2``): the letters are its field names."""
    fixed = {"a": group, "b": topic, "c": "TBW102", "d": "8", "f": str(flag), "h": "0", "j": "0", "k": "false"}
    varying = {"e": NUMBER, "g": NUMBER, "i": TEXT}
    return Template(Request.SEND_MESSAGE_V2, {**fixed, "m": "false"}, varying, connections.sign)
