"""The receiving port over the native client's push consumer: for RocketMQ 4.9, whose brokers have no POP."""

import logging
import os
import threading
import time
from collections.abc import Collection
from typing import Any

from outbox.brokers.native.beginnings import Beginnings
from outbox.brokers.native.consumer import PushConsumer
from outbox.brokers.native.handover import Ending, Handover
from outbox.brokers.native.names import check_names
from outbox.brokers.native.places import Places
from outbox.brokers.native.producer import Credentials
from outbox.brokers.native.reception import Reception
from outbox.brokers.native.returns import Returns
from outbox.brokers.remoting.acl import signature
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.routes import Routes, split_addresses
from outbox.brokers.source import Delivery
from outbox.clock import monotonic

log = logging.getLogger(__name__)


class PushSource:
    """A consumer group's view of some topics; see ``outbox.brokers.source.Source``.

    The client balances queues among the members, pulls, and keeps the offsets. Each of its ``threads`` waits with one
    message until that is answered, so at most so many are out at once. Answers other than success are given by us, for
    one message, over the remoting protocol.

    What it cannot promise: a queue that moves to another member takes along what is out, and the client writes offsets
    every few seconds only. So a delivery can come to two members at once, and one that was acknowledged can come again.
    """

    def __init__(
        self,
        name_servers: str,
        group: str,
        topics: Collection[str],
        library: Any,
        *,
        invisible: float = 60.0,
        threads: int = 32,
        credentials: Credentials | None = None,
    ) -> None:
        """``library``: from ``outbox.brokers.native.library.load``; ``invisible``: seconds. Nothing is dialled yet.

        ``SettingsError`` for names that the client does not survive.
        """
        if invisible <= 0 or not topics:
            raise ValueError("topics, invisible: name at least one topic, and a time above 0 s")
        check_names(group, topics)
        addresses = split_addresses(name_servers)
        sign = None if credentials is None else signature(credentials.access_key, credentials.secret_key)
        self._connections = Connections(sign=sign)
        routes = Routes(addresses, self._connections)
        self._beginnings = Beginnings(self._connections, routes, group)
        self._returns = Returns(self._connections, group)
        self._handover = Handover()
        reception = Reception(library, self._handover, Places(self._connections, routes, group), self._returns)
        self._consumer = PushConsumer(library, reception.on_message, self._handover.close)
        self._settings = (";".join(addresses), group, tuple(topics), threads, credentials)
        self._topics = tuple(topics)
        self._invisible = invisible
        self._process = os.getpid()
        self._state = threading.Lock()
        self._started = False
        self._closed = False

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to ``limit`` deliveries; the first call joins the group. See ``Source.receive``."""
        until = monotonic() + wait
        if not self._joined():
            time.sleep(max(0.0, until - monotonic()))
            return []
        return self._handover.take(limit, until - monotonic(), self._invisible)

    def acknowledge(self, delivery: Delivery) -> bool:
        """Lets the offset move past the delivery; the client writes it down within seconds."""
        if self._handover.claim(delivery) is None:
            return False
        self._handover.finish(delivery, Ending.DONE)
        return True

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Gives the delivery back for ``delay`` seconds, or the next longer of the broker's delay levels."""
        place = self._handover.claim(delivery)
        if place is None:
            return False
        return self._end(delivery, self._returns.later(place, delay))

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """Has a callback thread wait longer; the broker is not asked, since it knows of no time limit."""
        return self._handover.renew(delivery, invisible)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Has the broker copy the message to ``%DLQ%group``; the reason goes to the log."""
        place = self._handover.claim(delivery)
        if place is None:
            return False
        log.warning("burying %s of topic %s, key %s: %s", delivery.unique_id, delivery.topic, delivery.keys, reason)
        return self._end(delivery, self._returns.bury(place))

    def close(self) -> None:
        """Gives back what is not answered, leaves the group, ends the client."""
        with self._state:
            if not self._closed:
                self._closed = True
                self._consumer.close()
                self._connections.close()

    def _end(self, delivery: Delivery, confirmed: bool) -> bool:
        self._handover.finish(delivery, Ending.DONE if confirmed else Ending.FAILED)
        return confirmed

    def _joined(self) -> bool:
        """Whether the client runs; starts it where it does not and can."""
        if self._process != os.getpid():
            raise ValueError(
                f"the native client of process {self._process} does not work in a forked child: "
                "open a source after the fork, or use the transport rocketmq://"
            )
        with self._state:
            if not self._started and not self._closed:
                self._started = self._start()
            return self._started and not self._closed

    def _start(self) -> bool:
        try:
            self._beginnings.ensure(self._topics)
        except RemotingError as problem:
            log.warning("group %s: not joined yet: %s", self._settings[1], problem)
            return False
        self._consumer.start(*self._settings)
        return True
