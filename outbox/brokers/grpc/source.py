"""The receiving port over a RocketMQ 5 proxy: a SimpleConsumer to the proxy, POP consumption to the broker."""

import logging
import os
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, Final

from outbox.brokers.base import BrokerClosed
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.acknowledgements import Acknowledgements
from outbox.brokers.grpc.channels import Channels
from outbox.brokers.grpc.library import ClientType, FilterType
from outbox.brokers.grpc.polls import Polls
from outbox.brokers.grpc.registration import Registration
from outbox.brokers.grpc.routes import Routes, readable
from outbox.brokers.grpc.streams import Role
from outbox.brokers.source import Delivery
from outbox.clock import monotonic

log = logging.getLogger(__name__)

EVERYTHING: Final = "*"
#: Seconds between two looks at what may be polled: a proxy may have got to know us, or come back.
_LOOK: Final = 0.2
_CLOSING: Final = 5.0


class _Client:
    """Everything that belongs to one process."""

    def __init__(
        self, access: Access, group: str, topics: Mapping[str, str], invisible: float, *, orderly: bool
    ) -> None:
        self.process = os.getpid()
        self.channels = Channels(access)
        routes = Routes(self.channels, readable)
        self._registration = Registration(
            self.channels, routes, _consumer(group, topics, orderly=orderly), lambda *_: None
        )
        self.polls = Polls(self.channels, routes, self._registration, group, topics, invisible, orderly=orderly)
        self.acknowledgements = Acknowledgements(self.channels, group)
        self.receiving = threading.Lock()
        self._registration.register(frozenset(topics))

    def close(self) -> None:
        """Ends polls, streams and connections."""
        self._end(self.polls.close())
        self._registration.stop()
        self._end(self.channels.close())

    def _end(self, ending: Any) -> None:
        try:
            self.channels.run(ending).result(_CLOSING)
        except (TimeoutError, CancelledError) as problem:
            log.warning("a connection to the proxy did not end in time: %r", problem)


class GrpcSource:
    """A consumer group's view of some topics through proxies; see ``outbox.brokers.source.Source``.

    A delivery's invisible time counts from the moment before it was asked for, by our clock. The proxy buries what has
    failed more often than the group's ``retryMaxTimes`` [16]. gRPC does not survive a fork: a child may use what was
    opened before it only if nobody had used it yet (``ValueError`` else). Nothing is dialled before the first call.
    """

    def __init__(
        self,
        access: Access,
        group: str,
        topics: Mapping[str, str] | Collection[str],
        *,
        invisible: float = 60.0,
        orderly: bool = False,
    ) -> None:
        """``topics``: names, or names with tag expressions (``paid || refunded``); ``invisible``: seconds, 10 at least.

        A group that the broker has not seen begins at the start of young queues, else near their end
        (``ConsumeInitMode.MAX``).

        ``orderly``: one delivery of a queue at a time. The proxy decides it by the group's ``consumeMessageOrderly``:
        nothing is received while that says otherwise, and the log tells.
        """
        self._access = access
        self._group = group
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, EVERYTHING)
        self._invisible = invisible
        self._orderly = orderly
        self._closed = False
        self._client: _Client | None = None
        self._opening = threading.Lock()

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to ``limit`` deliveries (more are kept for the next call); see ``Source.receive``.

        ``BrokerClosed`` after ``close``. A poll that finds nothing in ``wait`` goes on; the next call has its answer.
        """
        client = self._open()
        until = monotonic() + wait
        with client.receiving:
            return self._receive(client, limit, until)

    def acknowledge(self, delivery: Delivery) -> bool:
        """Takes the delivery off for good; False without a request once it has expired."""
        return self._open().acknowledgements.acknowledge(delivery)

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Gives the delivery back: its invisible time now ends after ``delay`` seconds."""
        return self._open().acknowledgements.change(delivery, delay) is not None

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """Extends the invisible time; never after it is over."""
        before = monotonic()
        receipt = self._open().acknowledgements.change(delivery, invisible)
        return None if receipt is None else replace(delivery, receipt=receipt, invisible_until=before + invisible)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Has the proxy copy the message to ``%DLQ%group``, then acknowledges; the reason goes to the log."""
        return self._open().acknowledgements.bury(delivery, reason)

    def close(self) -> None:
        """Ends polls and connections; what a proxy had for us comes again after a second, or its invisible time."""
        with self._opening:
            client, self._client, self._closed = self._client, None, True
        if client is not None and client.process == os.getpid():
            client.polls.arrived.set()
            client.close()

    def _open(self) -> _Client:
        with self._opening:
            if self._closed:
                raise BrokerClosed(f"the source of group {self._group} is closed: open a new one")
            if self._client is None or self._client.process != os.getpid():
                self._client = _Client(self._access, self._group, self._topics, self._invisible, orderly=self._orderly)
            return self._client

    def _receive(self, client: _Client, limit: int, until: float) -> list[Delivery]:
        polls = client.polls
        while True:
            polls.arrived.clear()
            taken = polls.take(limit)
            if taken or self._closed:
                return taken
            client.channels.run(polls.start(limit))
            left = until - monotonic()
            if left <= 0:
                return []
            polls.arrived.wait(min(left, _LOOK))


def _consumer(group: str, topics: Mapping[str, str], *, orderly: bool) -> Role:
    def describe(settings: Any, names: frozenset[str]) -> None:
        """The group's subscription."""
        subscription = settings.subscription
        subscription.group.name = group
        for name in sorted(names):
            entry = subscription.subscriptions.add()
            entry.topic.name = name
            entry.expression.type, entry.expression.expression = FilterType.TAG, topics[name]

    def objection(settings: Any) -> str:
        """What an ordinary member receives of a FIFO group comes in order, and is worked on in any."""
        if settings.subscription.fifo == orderly:
            return ""
        if orderly:
            return f"the group is not FIFO at the broker: mqadmin updateSubGroup … -g {group} -o true"
        return "the group is FIFO at the broker (consumeMessageOrderly): set OUTBOX_ORDERLY=true, or take another group"

    return Role(
        ClientType.SIMPLE_CONSUMER,
        group,
        describe,
        stream=f"the stream that registers group {group}",
        without=f"group {group} receives nothing",
        objection=objection,
    )
