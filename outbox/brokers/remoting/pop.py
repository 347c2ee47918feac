"""The receiving port over POP consumption (RocketMQ 5.x): the broker balances, the client keeps no queues."""

import os
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from outbox.brokers.remoting.acknowledgements import Acknowledgements
from outbox.brokers.remoting.commands import Sign
from outbox.brokers.remoting.connections import Connections
from outbox.brokers.remoting.polls import GRACE, Polls, Popped
from outbox.brokers.remoting.receipts import Receipt
from outbox.brokers.remoting.routes import Routes, split_addresses
from outbox.brokers.remoting.streams import Dial, dial
from outbox.brokers.source import Delivery, unexpired
from outbox.clock import monotonic

EVERYTHING: Final = "*"
#: Seconds that an orderly source takes to close at most.
_CLOSING: Final = 2.0


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
        orderly: bool,
    ) -> None:
        self.process = os.getpid()
        self.connections = Connections(dialler=dialler, sign=sign)
        routes = Routes(name_servers, self.connections)
        self.polls = Polls(self.connections, routes, group, topics, invisible, orderly=orderly)
        self.acknowledgements = Acknowledgements(self.connections, routes, group)
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
        invisible: float = 60.0,
        dialler: Dial = dial,
        sign: Sign | None = None,
        orderly: bool = False,
    ) -> None:
        """``topics``: names, or tag expressions (``"a || b"``) by name; ``invisible``: seconds.

        ``orderly``: one delivery of a queue at a time, for all members of the group together, who must all ask for it.
        What an ordinary group had been given, and not acknowledged, lies in a retry topic that orderly ones never read.
        """
        expressions = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, EVERYTHING)
        if invisible <= 0 or not expressions:
            raise ValueError("topics, invisible: name at least one topic, and a time above 0 s")
        self._group = group
        self._invisible = invisible
        self._tags = {topic: _tags(expression) for topic, expression in expressions.items()}
        self._orderly = orderly
        self._settings = (split_addresses(name_servers), group, expressions, invisible, dialler, sign, orderly)
        self._closed = False
        self._client = _Client(*self._settings)

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to ``limit`` deliveries (more are kept for the next call); see ``Source.receive``."""
        client = self._own()
        until = monotonic() + wait
        with client.receiving:
            self._poll_until(client, limit, until)
            return unexpired(client.ready, limit)

    def acknowledge(self, delivery: Delivery) -> bool:
        """Takes the delivery off for good; False without a request once it has expired."""
        return self._own().acknowledgements.acknowledge(delivery)

    def acknowledge_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """As ``acknowledge`` for each, pipelined."""
        return self._own().acknowledgements.acknowledge_all(deliveries)

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Gives the delivery back: its invisible time now ends after ``delay`` seconds."""
        return self._own().acknowledgements.change(delivery, delay) is not None

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """Extends the invisible time; never after it is over, since that would make a second copy."""
        before = monotonic()
        renewed = self._own().acknowledgements.change(delivery, invisible)
        if renewed is None:
            return None
        return replace(delivery, receipt=str(renewed), invisible_until=before + invisible)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Has the broker copy the message to ``%DLQ%group``, then acknowledges; the reason goes to the log."""
        return self._own().acknowledgements.bury(delivery, reason)

    def close(self) -> None:
        """Ends the connections; polls end with them and take nothing along."""
        if not self._closed:
            self._closed = True
            client = self._own()
            if self._orderly:
                self._give_back(client)
            client.connections.close()

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
            if popped.message.unreadable:
                self.bury(delivery, popped.message.unreadable)  # the broker copies it as it was stored
            elif wanted is None or delivery.tag in wanted:
                client.ready.append(delivery)
            else:
                self.acknowledge(delivery)  # the broker compares hashes: another tag with the same one

    def _give_back(self, client: _Client) -> None:
        """What was received and never asked for would block its queues until its time is over.

        So would answers that are on their way: polls are waited for, which end by themselves.
        """
        until = monotonic() + _CLOSING
        client.polls.arrived.set()  # a call that still receives sees that this source is closed
        with client.receiving:
            while True:
                client.polls.arrived.clear()
                self._collect(client)
                left = until - monotonic()
                if not client.polls.in_flight or left <= 0:
                    break
                client.polls.wait(left)
            while client.ready:
                client.acknowledgements.change(client.ready.popleft(), 0.0)

    def _delivery(self, popped: Popped) -> Delivery:
        message = popped.message
        return Delivery(
            topic=message.topic,
            body=message.body,
            unique_id=message.properties.get("UNIQ_KEY", ""),
            keys=tuple(message.properties.get("KEYS", "").split()),
            tag=message.properties.get("TAGS"),
            properties=message.properties,
            attempt=popped.attempt,
            receipt=str(popped.receipt),
            invisible_until=popped.sent + self._invisible,
            born_at=message.born_at / 1000,
            lane=_lane(message.topic, popped.receipt) if self._orderly else None,
        )


def _lane(topic: str, receipt: Receipt) -> str:
    return f"{topic}@{receipt.broker}/{receipt.queue}"


def _tags(expression: str) -> frozenset[str] | None:
    """The tags of ``a || b``; None: any."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return None if not tags or EVERYTHING in tags else tags
