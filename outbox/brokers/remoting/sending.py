"""Sends half messages and plain messages: placed on queues, pipelined, one wire attempt each."""

import logging
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor
from typing import Final, Generic

from outbox import faults
from outbox.brokers.base import SHARDING_KEY, Outage, Outgoing, Refused, Unknown
from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.commands import NUMBER, STORED, TEXT, Code, Request, Template, quote, refusal
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.frames import MAX_FRAME, Frame
from outbox.brokers.remoting.kinds import Kind, Outcome
from outbox.brokers.remoting.pipeline import Answers, each, exchange
from outbox.brokers.remoting.placing import Placing, Share
from outbox.brokers.remoting.reach import nobody
from outbox.brokers.remoting.routes import Routes
from outbox.brokers.remoting.stored import encode_properties
from outbox.brokers.remoting.window import CAP, Window
from outbox.clock import monotonic

log = logging.getLogger(__name__)

Failure = Refused | Unknown | Outage

#: What a frame may hold beside the body: the broker's limit is that of a frame, and properties stay below 32 KiB.
_BODY_MAX: Final = MAX_FRAME - 256 * 1024
_TEMPLATES_MAX: Final = 1000
_REFUSALS: Final = frozenset((Code.MESSAGE_ILLEGAL, Code.NO_PERMISSION, Code.TOPIC_NOT_EXIST))
_OUTAGES: Final = frozenset((Code.BUSY, Code.SERVICE_NOT_AVAILABLE))
#: Answers, none among them, after which messages had better go to another broker.
_NOT_HERE: Final[Set[int | None]] = frozenset((None, Code.SERVICE_NOT_AVAILABLE))
_COPY_LATE: Final = STORED - {Code.SUCCESS}
_LATE: Final = "not sent in time"
#: How the broker says that the topic has fewer queues than the route told (code 1 of 4.9, 29 of 5.x): not stored.
_NO_QUEUE: Final = "request queueId["

#: A message that can be sent: place in the batch, message, queue, properties in wire form.
_Item = tuple[int, Outgoing, int, str]


class Sender(Generic[Outcome]):
    """Sends messages of one kind; safe to use from several threads."""

    def __init__(
        self,
        connections: Connections,
        routes: Routes,
        group: str,
        kind: Kind[Outcome],
        pool: Executor,
        breakers: Breakers,
        cap: int = CAP,
    ) -> None:
        self._connections = connections
        self._routes = routes
        self._breakers = breakers
        self._placing = Placing(routes, breakers)
        self._group = group
        self._kind = kind
        self._pool = pool
        self._cap = cap
        self._windows: dict[str, Window] = {}
        self._templates: dict[str, Template] = {}

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Outcome | Failure]:
        """Outcomes in the order of ``messages``, within ``timeout`` seconds."""
        until = monotonic() + timeout
        outcomes: list[Outcome | Failure] = [Outage(_LATE)] * len(messages)
        shares, nowhere = self._placing.share(messages, until)
        for index, outage in nowhere.items():
            outcomes[index] = outage
        each(self._pool, lambda share: self._send_share(share, outcomes, until), shares)
        return outcomes

    def _send_share(self, share: Share, outcomes: list[Outcome | Failure], until: float) -> None:
        window = self._windows.get(share.broker) or self._windows.setdefault(share.broker, Window(self._cap))
        items = self._sendable(share.items, outcomes)
        sizes = [len(message.body) for _, message, _, _ in items]
        start = 0
        while start < len(items):
            places = window.take(sizes[start:], until)
            if not places:
                return
            stop = start + places
            busy = True
            try:
                busy = self._send_chunk(share, items[start:stop], outcomes, until)
            finally:
                window.give_back(sizes[start:stop], busy=busy)
            start = stop
            if start < len(items):
                faults.point("sending.between_chunks")

    def _sendable(self, items: Sequence[tuple[int, Outgoing, int]], outcomes: list[Outcome | Failure]) -> list[_Item]:
        """Adds the properties in wire form; what would break the frame or the properties is refused here."""
        sendable = []
        fixed = self._kind.properties
        for index, message, queue in items:
            every = {**message.properties, **_own_properties(message)}
            properties = encode_properties(every)
            if not properties.count("\x01") == properties.count("\x02") == len(every):
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
        self, share: Share, items: Sequence[_Item], outcomes: list[Outcome | Failure], until: float
    ) -> bool:
        """Sends, and fills the outcomes in; whether the broker was busy, or did not answer."""

        def encode(first: int) -> list[bytes]:
            """The requests of the chunk."""
            born = int(time.time() * 1000)
            templates = {topic: self._template(topic) for topic in {message.topic for _, message, _, _ in items}}
            return [
                templates[message.topic].frame(opaque, (queue, born, quote(properties)), message.body)
                for opaque, (_, message, queue, properties) in enumerate(items, first)
            ]

        answers = exchange(self._connections, share.address, len(items), encode, until)
        codes = {None if answer is None else answer.code for answer in answers.frames}
        self._learn(share.address, codes)
        failed = self._failures(share.address, answers, codes, until)
        for place, (index, message, _, _) in enumerate(items):
            answer = answers.frames[place]
            if answer is not None and answer.code in STORED:
                outcomes[index] = self._kind.stored(message, share.broker, answer)
            else:
                outcomes[index] = failed(answer, place)
        return None in codes or Code.BUSY in codes

    def _learn(self, address: str, codes: Set[int | None]) -> None:
        """Has other brokers come first where this one is silent or takes nothing, and its routes asked for again where
        something is not as they say: a queue that is gone, a topic that was closed."""
        if codes - STORED - _OUTAGES:
            self._routes.doubt(address)
        if codes & _COPY_LATE:
            log.warning("%s: stored, but not yet on disk or at the slave: codes %s", address, codes & _COPY_LATE)
        if codes & _NOT_HERE:
            self._breakers.failed(address)
        else:
            self._breakers.answered(address)

    def _failures(
        self, address: str, answers: Answers, codes: Set[int | None], until: float
    ) -> Callable[[Frame | None, int], Failure]:
        """What an answer other than "stored", or none, says about the message at a place of the batch.

        Code 16 is the broker's word for two things. To a client that it does not know at all it is an outage: nothing
        gets through, whatever the message. To one whose other requests it takes, it is a refusal of this message.
        """
        partial = bool(codes & _NOT_HERE) and self._placing.is_elsewhere(address)
        stranger = Code.NO_PERMISSION in codes and not codes & STORED and not self._is_known(address, until)

        def failure(answer: Frame | None, place: int) -> Failure:
            """The failure of one message."""
            if answer is None and place < answers.written:
                return Unknown(answers.reason)
            if answer is None:
                return Outage(answers.reason or _LATE, partial)
            reason = refusal(answer.code, answer.remark)
            if answer.code in _OUTAGES or (stranger and answer.code == Code.NO_PERMISSION):
                return Outage(reason, partial)
            if _NO_QUEUE in answer.remark:
                return Outage(reason, partial=True)
            return Refused(reason) if answer.code in _REFUSALS else Unknown(reason)

        return failure

    def _is_known(self, address: str, until: float) -> bool:
        """Whether the broker knows who we are: a heartbeat of nobody needs no right beside that."""
        body, timeout = nobody(self._group), max(0.0, until - monotonic())
        try:
            self._connections.ask(address, Request.HEARTBEAT, {}, body, timeout=timeout)
        except RemotingError as problem:
            log.warning("%s does not take us for a client that it knows: %s", address, problem)
            return False
        return True

    def _template(self, topic: str) -> Template:
        template = self._templates.get(topic)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[topic] = _send_template(self._group, topic, self._kind.flag, self._connections)
        return template


def _own_properties(message: Outgoing) -> dict[str, str]:
    """Fields of the message that travel as properties of RocketMQ."""
    own = {"KEYS": message.key, "UNIQ_KEY": message.unique_id}
    if message.tag is not None:
        own["TAGS"] = message.tag
    if message.lane is not None:
        own[SHARDING_KEY] = message.lane
    return own


def _send_template(group: str, topic: str, flag: int, connections: Connections) -> Template:
    """SEND_MESSAGE_V2 (``SendMessageRequestHeaderV2``): the letters are its field names."""
    fixed = {"a": group, "b": topic, "c": "TBW102", "d": "8", "f": str(flag), "h": "0", "j": "0", "k": "false"}
    varying = {"e": NUMBER, "g": NUMBER, "i": TEXT}
    return Template(Request.SEND_MESSAGE_V2, {**fixed, "m": "false"}, varying, connections.sign)
