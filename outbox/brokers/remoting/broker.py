"""The broker port over RocketMQ's remoting protocol."""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.commands import Sign
from outbox.brokers.remoting.connections import Connections
from outbox.brokers.remoting.kinds import half_kind, plain_kind
from outbox.brokers.remoting.listener import HEARTBEAT, Listener
from outbox.brokers.remoting.lookup import LookUp
from outbox.brokers.remoting.reach import Reach
from outbox.brokers.remoting.routes import FRESH, Routes, split_addresses
from outbox.brokers.remoting.sending import Sender
from outbox.brokers.remoting.streams import Dial, dial
from outbox.brokers.remoting.transactions import Transactions
from outbox.brokers.remoting.window import CAP
from outbox.clock import monotonic
from outbox.verdict import Sighting

CAPABILITIES: Final = Capabilities(confirms=True, finds=True, ends_by_handle=True, check_scope="group")
#: Brokers that one call talks to at the same time.
_BROKERS_AT_ONCE: Final = 16


class _Client:
    """Everything that belongs to one process: connections, routes, threads."""

    def __init__(
        self,
        name_servers: Sequence[str],
        group: str,
        dialler: Dial,
        sign: Sign | None,
        cap: int,
        fresh: float,
        heartbeat: float,
    ) -> None:
        self.process = os.getpid()
        self.listener = Listener(heartbeat)
        self.connections = Connections(self.listener.on_request, dialler=dialler, sign=sign)
        self._pool = ThreadPoolExecutor(_BROKERS_AT_ONCE, "remoting-broker")
        routes = Routes(name_servers, self.connections, fresh)
        self.reach = Reach(self.connections, routes, group)
        breakers = Breakers(self.reach.answers, self._pool)
        self.halves = Sender(self.connections, routes, group, half_kind(group), self._pool, breakers, cap)
        self.plain = Sender(self.connections, routes, group, plain_kind(), self._pool, breakers, cap)
        self.transactions = Transactions(self.connections, routes, self._pool)
        self.look_up = LookUp(self.connections, routes)
        self.listener.connect(self.connections, routes, self.transactions)

    def close(self) -> None:
        """Ends threads and connections."""
        self.listener.stop()
        self.connections.close()
        self._pool.shutdown(wait=False)


class RemotingBroker:
    """A RocketMQ cluster (4.9 or 5.x) under one producer group; see ``outbox.brokers.base.Broker``.

    In a forked child the first call builds connections of its own; a listener stays with the parent, the child has to
    call ``listen`` again.
    """

    def __init__(
        self,
        name_servers: str,
        group: str,
        *,
        dialler: Dial = dial,
        sign: Sign | None = None,
        in_flight: int = CAP,
        routes_fresh: float = FRESH,
        heartbeat: float = HEARTBEAT,
    ) -> None:
        """``name_servers``: ``host:9876``, several with ``;`` between them. Nothing is dialled before it is needed.

        ``in_flight``: messages at one broker at once; ``routes_fresh``: seconds for which a route is not asked again;
        ``heartbeat``: seconds between two, of which the broker forgets a listener after 120.
        """
        self._settings = (split_addresses(name_servers), group, dialler, sign, in_flight, routes_fresh, heartbeat)
        self._group = group
        self._closed = False
        self._client = _Client(*self._settings)

    @property
    def capabilities(self) -> Capabilities:
        """What this transport can do."""
        return CAPABILITIES

    @property
    def group(self) -> str:
        """The producer group of new halves."""
        return self._group

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """Sends halves; see ``Broker.prepare``."""
        return list(self._open().halves.send(messages, timeout))

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Ends halves; see ``Broker.resolve``."""
        refuse_unknown(endings)
        return self._open().transactions.end(endings, until)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """Sends plain messages; see ``Broker.send``."""
        return list(self._open().plain.send(messages, timeout))

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """Looks halves' messages up; see ``Broker.find``. After ``close``: CANNOT_TELL."""
        if self._closed:
            return [Sighting.CANNOT_TELL] * len(sought)
        return self._open().look_up.find(sought, until)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        """Answers checks from now on; see ``Broker.listen``."""
        self._open().listener.listen(self._group, topics, on_check, groups)

    def reachable(self, timeout: float) -> bool:
        """Whether a master answers; see ``Broker.reachable``."""
        return not self._closed and self._own().reach.anybody(monotonic() + timeout)

    def checks_ready(self) -> bool:
        """Whether every master that has one of the topics knows the groups; see ``Broker.checks_ready``."""
        return not self._closed and self._open().listener.is_ready()

    def close(self) -> None:
        """Ends threads and connections; see ``Broker.close``."""
        if not self._closed:
            self._closed = True
            self._own().close()

    def _open(self) -> _Client:
        if self._closed:
            raise BrokerClosed(f"the connection of group {self._group} is closed: open a new one")
        return self._own()

    def _own(self) -> _Client:
        """This process's client: threads and locks do not survive a fork, and sockets belong to the parent."""
        if self._client.process != os.getpid():
            self._client.connections.abandon()
            self._client = _Client(*self._settings)
        return self._client
