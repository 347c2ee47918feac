"""POP requests in flight: one for each topic and broker, left alone until its answer comes.

A poll is never cancelled: on an open connection that would swallow a message until its invisible time is over.

An orderly POP leaves messages where they are and blocks their queue for the group until all of them are acknowledged or
their time is over; it then begins with the first that is not acknowledged, and counts a delivery for each of the others
as well (``ConsumerOrderInfoManager``). So it asks for one message, several times at once.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from outbox.brokers.remoting.commands import Code, Request, refusal
from outbox.brokers.remoting.connection import Closed, Connection, Exchange
from outbox.brokers.remoting.connections import Away, Connections, RemotingError
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.receipts import Receipt, deliveries_before, receipts
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage, decode_messages
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: The broker's limit of messages for one POP.
MOST: Final = 32
#: Polls of an orderly group for one topic at one broker: each finds one message of another queue.
_ORDERLY_POLLS: Final = 4
#: Seconds that a topic or broker rests after a failure, and that an answer may take beyond its poll time.
_REST: Final = 1.0
#: In the place of a broker's name: the topic rests since it has no route.
_ROUTE: Final = ""
GRACE: Final = 3.0
_NOTHING: Final = frozenset((Code.POLLING_FULL, Code.POLLING_TIMEOUT))


@dataclass(frozen=True, slots=True)
class Popped:
    """A message, its receipt, the moment before its request was sent, and which delivery of it this is."""

    message: StoredMessage
    receipt: Receipt
    sent: float
    attempt: int


@dataclass(frozen=True, slots=True)
class _Poll:
    topic: str
    broker: str
    connection: Connection
    exchange: Exchange
    sent: float
    #: When its answer is overdue: the connection is ended, since a late answer would be lost.
    overdue: float


#: Topic, broker, and which of the polls there.
_Name = tuple[str, str, int]


class Polls:
    """The polls of one consumer group; used by one thread at a time."""

    def __init__(
        self,
        connections: Connections,
        routes: Routes,
        group: str,
        topics: Mapping[str, str],
        invisible: float,
        *,
        orderly: bool = False,
    ) -> None:
        self._connections = connections
        self._routes = routes
        self._group = group
        #: Tag expression by topic.
        self._topics = topics
        self._invisible = invisible
        self._orderly = orderly
        self._numbers = range(_ORDERLY_POLLS if orderly else 1)
        self._polls: dict[_Name, _Poll] = {}
        self._resting: dict[tuple[str, str], float] = {}
        self.arrived = threading.Event()

    def start(self, limit: int, wait: float) -> bool:
        """Polls every topic and broker that is not polled yet, for up to ``wait`` seconds; whether there was one."""
        before = len(self._polls)
        for topic in self._topics:
            for broker, address in self._masters(topic).items():
                for number in self._numbers:
                    self._start((topic, broker, number), address, limit, wait)
        return len(self._polls) > before

    @property
    def in_flight(self) -> int:
        """Polls whose answers have not been taken."""
        return len(self._polls)

    def wait(self, seconds: float) -> None:
        """Waits for an answer; where every topic rests, a moment of it."""
        if self._polls:
            self.arrived.wait(seconds)
        else:
            time.sleep(min(seconds, _REST / 10))

    def take(self) -> Iterator[Popped]:
        """What has arrived since the last call."""
        for name, poll in list(self._polls.items()):
            if not poll.exchange.is_over and monotonic() > poll.overdue:
                log.warning("%s: no answer to a poll, closing the connection", poll.connection.address)
                poll.connection.close()
            elif poll.exchange.is_over:
                del self._polls[name]
                yield from self._read(poll)

    def _masters(self, topic: str) -> Mapping[str, str]:
        if self._resting.get((topic, _ROUTE), 0.0) >= monotonic():
            return {}
        try:
            return self._routes.route(topic).masters
        except (RemotingError, NoRoute) as problem:
            log.warning("nothing is received from topic %s: %s", topic, problem)
            self._resting[topic, _ROUTE] = monotonic() + _REST
            return {}

    def _start(self, name: _Name, address: str, limit: int, wait: float) -> None:
        topic, broker, _ = name
        now = monotonic()
        if name in self._polls or self._resting.get((topic, broker), 0.0) >= now:
            return
        try:
            connection = self._connections.get(address, now + GRACE)
            exchange = connection.open_exchange(1, self.arrived.set)
        except (Away, Closed) as problem:
            self._rest(topic, broker, str(problem))
            self._routes.doubt(address)
            return
        request = self._connections.request(Request.POP_MESSAGE, exchange.first, self._fields(topic, limit, wait))
        sent = monotonic()
        connection.send(exchange, [request], sent + GRACE)
        if exchange.written:
            self._polls[name] = _Poll(topic, broker, connection, exchange, sent, sent + wait + GRACE)
        else:
            connection.leave(exchange)
            self._rest(topic, broker, "the request was not written")

    def _fields(self, topic: str, limit: int, wait: float) -> dict[str, str]:
        """POP_MESSAGE (``PopMessageRequestHeader``); a born time of ours would break polling where clocks differ."""
        return {
            "consumerGroup": self._group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": "1" if self._orderly else str(max(1, min(limit, MOST))),
            "invisibleTime": str(int(self._invisible * 1000)),
            "pollTime": str(int(wait * 1000)),
            "bornTime": "0",
            "initMode": "0",
            "expType": "TAG",
            "exp": self._topics[topic],
            "order": "true" if self._orderly else "false",
        }

    def _read(self, poll: _Poll) -> Iterator[Popped]:
        answer = poll.exchange.answers[0]
        if answer is None:
            self._rest(poll.topic, poll.broker, "the connection ended")
            self._routes.doubt(poll.connection.address)
        elif answer.code == Code.SUCCESS:
            yield from self._popped(poll, answer)
        elif answer.code not in _NOTHING:
            self._rest(poll.topic, poll.broker, refusal(answer.code, answer.remark))

    def _popped(self, poll: _Poll, answer: Frame) -> Iterator[Popped]:
        try:
            found = [*receipts(list(decode_messages(answer.body)), answer.ext, poll.broker)]
        except MalformedMessage:
            log.exception("topic %s at broker %s: an answer cannot be read; it comes again", poll.topic, poll.broker)
            self._resting[poll.topic, poll.broker] = monotonic() + _REST
            return
        for message, receipt in found:
            before = deliveries_before(answer.ext, receipt) if self._orderly else message.reconsume_times
            yield Popped(message, receipt, poll.sent, before + 1)

    def _rest(self, topic: str, broker: str, reason: str) -> None:
        log.warning("nothing is received from topic %s at broker %s: %s", topic, broker, reason)
        self._resting[topic, broker] = monotonic() + _REST
