"""The receiving port over POP consumption (RocketMQ 5.x): the broker balances, the client keeps no queues."""

import logging
import os
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from outbox.brokers.remoting.admin import split_addresses
from outbox.brokers.remoting.commands import Code, Request, Sign
from outbox.brokers.remoting.connections import Connections, Denied, RemotingError
from outbox.brokers.remoting.pipeline import exchange
from outbox.brokers.remoting.polls import GRACE, Polls, Popped
from outbox.brokers.remoting.receipts import Receipt
from outbox.brokers.remoting.routes import Routes
from outbox.brokers.remoting.streams import Dial, dial
from outbox.brokers.source import Delivery
from outbox.clock import monotonic

log = logging.getLogger(__name__)

EVERYTHING: Final = "*"
_DEAD_LETTER: Final = "-1"


class _Client:
    """Everything that belongs to one process."""

    def __init__(
        self,
        name_servers: Sequence[str],
        group: str,
        topics: Mapping[str, str],
        invisible: float,
        dialler: Dial,
        sign: Sign | None,
    ) -> None:
        self.process = os.getpid()
        self.connections = Connections(dialler=dialler, sign=sign)
        self.routes = Routes(name_servers, self.connections)
        self.polls = Polls(self.connections, self.routes, group, topics, invisible)
        self.receiving = threading.Lock()
        self.ready: deque[Delivery] = deque()


class PopSource:
    """A consumer group's view of some topics; see ``outbox.brokers.source.Source``.

    A delivery's invisible time counts from the moment before it was asked for, by our clock. The broker says yes to
    receipts that have expired, so nothing is asked with one.
    """

    def __init__(
        self,
        name_servers: str,
        group: str,
        topics: Mapping[str, str] | Collection[str],
        *,
        invisible: float = 30.0,
        dialler: Dial = dial,
        sign: Sign | None = None,
    ) -> None:
        """``topics``: names, or tag expressions (``"a || b"``) by name; ``invisible``: seconds."""
        expressions = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, EVERYTHING)
        if invisible <= 0 or not expressions:
            raise ValueError("topics, invisible: name at least one topic, and a time above 0 s")
        self._group = group
        self._invisible = invisible
        self._tags = {topic: _tags(expression) for topic, expression in expressions.items()}
        self._settings = (split_addresses(name_servers), group, expressions, invisible, dialler, sign)
        self._closed = False
        self._client = _Client(*self._settings)

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to ``limit`` deliveries (more are kept for the next call); see ``Source.receive``."""
        client = self._own()
        until = monotonic() + wait
        with client.receiving:
            self._poll_until(client, limit, until)
            return self._take(client, limit)

    def acknowledge(self, delivery: Delivery) -> bool:
        """Takes the delivery off for good; False without a request once it has expired."""
        receipt = Receipt.parse(delivery.receipt)
        return self._ask(delivery, receipt, Request.ACK_MESSAGE, self._fields(delivery, receipt)) is not None

    def acknowledge_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """As ``acknowledge`` for each, pipelined: one write and one wait for each broker, an answer for each delivery.

        BATCH_ACK_MESSAGE would answer once for all, and says yes even to a topic that does not exist.
        """
        client = self._own()
        positions: dict[str, list[int]] = {}
        found = [Receipt.parse(delivery.receipt) for delivery in deliveries]
        for index, delivery in enumerate(deliveries):
            if monotonic() < delivery.invisible_until:
                positions.setdefault(found[index].broker, []).append(index)
        confirmed = [False] * len(deliveries)
        for broker, indexes in positions.items():
            for index in self._acknowledge_at(client, broker, [(i, deliveries[i], found[i]) for i in indexes]):
                confirmed[index] = True
        return confirmed

    def _acknowledge_at(
        self, client: _Client, broker: str, items: Sequence[tuple[int, Delivery, Receipt]]
    ) -> Iterator[int]:
        """The indexes of those that one broker confirmed in time."""
        until = min(monotonic() + GRACE, max(delivery.invisible_until for _, delivery, _ in items))
        try:
            address = client.routes.master(items[0][1].topic, broker, until)
        except RemotingError as problem:
            log.warning("%d deliveries are not acknowledged: %s", len(items), problem)
            return

        def encode(first: int) -> list[bytes]:
            """The requests of one broker."""
            return [
                client.connections.request(Request.ACK_MESSAGE, opaque, self._fields(delivery, receipt))
                for opaque, (_, delivery, receipt) in enumerate(items, first)
            ]

        answers = exchange(client.connections, address, len(items), encode, until)
        for (index, delivery, _), answer in zip(items, answers.frames, strict=True):
            if answer is not None and answer.code == Code.SUCCESS and monotonic() < delivery.invisible_until:
                yield index

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Gives the delivery back: its invisible time now ends after ``delay`` seconds."""
        return self._change(delivery, delay) is not None

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """Extends the invisible time; never after it is over, since that would make a second copy."""
        before = monotonic()
        renewed = self._change(delivery, invisible)
        if renewed is None:
            return None
        return replace(delivery, receipt=str(renewed), invisible_until=before + invisible)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Has the broker copy the message to ``%DLQ%group``, then acknowledges; the reason goes to the log."""
        receipt = Receipt.parse(delivery.receipt)
        fields = {
            "offset": receipt.commit_log_offset,
            "group": self._group,
            "delayLevel": _DEAD_LETTER,
            "originMsgId": delivery.unique_id,
            "originTopic": receipt.real_topic(delivery.topic, self._group),
            "unitMode": "false",
            "maxReconsumeTimes": "0",
        }
        log.warning("burying %s of topic %s, key %s: %s", delivery.unique_id, delivery.topic, delivery.keys, reason)
        if self._ask(delivery, receipt, Request.SEND_MESSAGE_BACK, fields) is None:
            return False
        return self.acknowledge(delivery)

    def close(self) -> None:
        """Ends the connections; polls end with them and take nothing along."""
        if not self._closed:
            self._closed = True
            self._own().connections.close()

    def _own(self) -> _Client:
        """This process's client; what the parent received stays the parent's."""
        if self._client.process != os.getpid():
            self._client.connections.abandon()
            self._client = _Client(*self._settings)
        return self._client

    def _poll_until(self, client: _Client, limit: int, until: float) -> None:
        """Polls at least once, and until there is something; a poll uses the invisible time up, so it is short."""
        asked = False
        while not self._closed:
            client.polls.arrived.clear()
            self._collect(client)
            left = max(0.0, until - monotonic())
            if client.ready or (asked and not left):
                return
            started = client.polls.start(limit, min(left, self._invisible / 3))
            client.polls.wait(left or (GRACE if started else 0.0))
            asked = True

    def _collect(self, client: _Client) -> None:
        for popped in client.polls.take():
            delivery = self._delivery(popped)
            wanted = self._tags.get(delivery.topic)
            if wanted is None or delivery.tag in wanted:
                client.ready.append(delivery)
            else:
                self.acknowledge(delivery)  # the broker compares hashes: another tag with the same one

    def _take(self, client: _Client, limit: int) -> list[Delivery]:
        """Up to ``limit`` deliveries that have not expired while they waited here."""
        taken: list[Delivery] = []
        while client.ready and len(taken) < limit:
            delivery = client.ready.popleft()
            if monotonic() < delivery.invisible_until:
                taken.append(delivery)
        return taken

    def _delivery(self, popped: Popped) -> Delivery:
        message = popped.message
        return Delivery(
            topic=message.topic,
            body=message.body,
            unique_id=message.properties.get("UNIQ_KEY", ""),
            keys=tuple(message.properties.get("KEYS", "").split()),
            tag=message.properties.get("TAGS"),
            properties=message.properties,
            attempt=message.reconsume_times + 1,
            receipt=str(popped.receipt),
            invisible_until=popped.sent + self._invisible,
        )

    def _fields(self, delivery: Delivery, receipt: Receipt) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": receipt.real_topic(delivery.topic, self._group),
            "queueId": receipt.queue,
            "offset": receipt.offset,
            "extraInfo": receipt.handle,
        }

    def _change(self, delivery: Delivery, invisible: float) -> Receipt | None:
        """CHANGE_MESSAGE_INVISIBLETIME; the receipt that replaces the old one."""
        receipt = Receipt.parse(delivery.receipt)
        fields = {**self._fields(delivery, receipt), "invisibleTime": str(max(1, int(invisible * 1000)))}
        answer = self._ask(delivery, receipt, Request.CHANGE_INVISIBLE, fields)
        return None if answer is None else receipt.renewed(answer)

    def _ask(
        self, delivery: Delivery, receipt: Receipt, code: Request, fields: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """The fields of the broker's yes, in time; None otherwise: the broker also says yes to expired receipts."""
        left = delivery.invisible_until - monotonic()
        if left <= 0:
            return None
        client = self._own()
        try:
            address = client.routes.master(delivery.topic, receipt.broker)
            answer = client.connections.call(address, code, fields, timeout=min(left, GRACE))
        except RemotingError as problem:
            log.warning("%s of topic %s: %s", delivery.unique_id, delivery.topic, problem)
            return None
        if answer.code != Code.SUCCESS:
            log.warning("%s of topic %s: %s", delivery.unique_id, delivery.topic, Denied(address, answer))
            return None
        return answer.ext if monotonic() < delivery.invisible_until else None


def _tags(expression: str) -> frozenset[str] | None:
    """The tags of ``a || b``; None: any."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return None if not tags or EVERYTHING in tags else tags
