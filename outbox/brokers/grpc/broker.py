"""The broker port over a RocketMQ 5 proxy."""

import logging
import os
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import CancelledError
from typing import Final

from outbox.brokers.base import (
    BrokerClosed,
    Capabilities,
    Ended,
    Ending,
    OnCheck,
    Outgoing,
    Prepared,
    Publication,
    Sought,
    refuse_unknown,
)
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.channels import Channels, Unreachable
from outbox.brokers.grpc.halves import OpenHalves
from outbox.brokers.grpc.listener import Listener
from outbox.brokers.grpc.routes import Routes, writable
from outbox.brokers.grpc.sending import Sender, half_kind, plain_kind
from outbox.brokers.grpc.transactions import Transactions
from outbox.clock import monotonic
from outbox.verdict import Sighting

log = logging.getLogger(__name__)

CAPABILITIES: Final = Capabilities(confirms=False, finds=False, ends_by_handle=False, check_scope="topic")
#: Seconds for the connections to end.
_CLOSING: Final = 5.0


class _Client:
    """Everything that belongs to one process. What is sent and what is asked have connections of their own."""

    def __init__(self, access: Access) -> None:
        self.process = os.getpid()
        self._sending, self._asking = Channels(access), Channels(access)
        halves = OpenHalves()
        routes = Routes(self._sending, writable)
        self.halves = Sender(self._sending, routes, half_kind(halves))
        self.plain = Sender(self._sending, routes, plain_kind())
        self.transactions = Transactions(self._sending, halves)
        self.listener = Listener(self._asking, Transactions(self._asking, halves))

    def is_connected(self, timeout: float) -> bool:
        """Whether the proxy that was named takes a connection within so many seconds, or has one."""
        try:
            self._sending.run(self._connect(monotonic() + timeout)).result(timeout + _CLOSING)
        except (Unreachable, TimeoutError, CancelledError) as problem:
            log.debug("not reachable: %r", problem)
            return False
        return True

    async def _connect(self, until: float) -> None:
        await self._sending.get(self._sending.access_point).ready(until)

    def close(self) -> None:
        """Ends tasks, threads and connections."""
        self.listener.stop()
        for channels in (self._asking, self._sending):
            try:
                channels.run(channels.close()).result(_CLOSING)
            except (TimeoutError, CancelledError) as problem:
                log.warning("a connection to the proxy did not end in time: %r", problem)


class GrpcBroker:
    """A RocketMQ 5 cluster behind its proxies; see ``outbox.brokers.base.Broker``.

    The proxy uses the topic as the producer group, so a half's group is its topic, and checks reach whoever listens to
    the topic. gRPC does not survive a fork: a child may use what was opened before it only if nobody had used it yet
    (``ValueError`` else). Nothing is dialled, and no thread started, before the first call.
    """

    def __init__(self, access: Access, group: str) -> None:
        """``group``: a name for this service; it is not sent to the proxy."""
        self._access = access
        self._group = group
        self._closed = False
        self._client: _Client | None = None
        self._opening = threading.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """What this transport can do."""
        return CAPABILITIES

    @property
    def group(self) -> str:
        """The name that was given; halves carry their topic as group."""
        return self._group

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """Sends halves; see ``Broker.prepare``. The unique id is the caller's: the broker stores it as UNIQ_KEY."""
        return self._open().halves.send(messages, timeout)

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Ends halves that this process sent, once each; see ``Broker.resolve``. Never CONFIRMED."""
        refuse_unknown(endings)
        return self._open().transactions.end(endings, until)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """Sends plain messages; see ``Broker.send``."""
        return self._open().plain.send(messages, timeout)

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:  # noqa: ARG002 -- there is no look-up
        """CANNOT_TELL: the protocol has no look-up."""
        return [Sighting.CANNOT_TELL] * len(sought)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:  # noqa: ARG002
        """Answers checks about ``topics`` from now on; none named: about none. See ``Broker.listen``."""
        self._open().listener.listen(topics, on_check)

    def reachable(self, timeout: float) -> bool:
        """Whether there is a connection to the proxy, which need not have one to the broker."""
        try:
            return self._open().is_connected(timeout)
        except BrokerClosed:
            return False

    def checks_ready(self) -> bool:
        """Whether the proxies of all topics that exist have acknowledged them; see ``Broker.checks_ready``."""
        return not self._closed and self._client is not None and self._client.listener.is_ready()

    def close(self) -> None:
        """Ends threads and connections; see ``Broker.close``."""
        with self._opening:
            client, self._closed = self._client, True
        if client is not None and client.process == os.getpid():
            client.close()
        self._client = None

    def _open(self) -> _Client:
        with self._opening:
            if self._closed:
                raise BrokerClosed(f"the connection of group {self._group} is closed: open a new one")
            if self._client is None or self._client.process != os.getpid():
                self._client = _Client(self._access)  # in a forked child of one that used it: ValueError
            return self._client
