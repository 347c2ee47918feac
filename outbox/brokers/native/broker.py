"""The broker port over Apache's native client: it sends, ``outbox.brokers.remoting`` does everything else."""

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from outbox.brokers.base import (
    BrokerClosed,
    Capabilities,
    Ended,
    Ending,
    Half,
    OnCheck,
    Outgoing,
    Prepared,
    Publication,
    Sent,
    Sought,
    Stored,
    Unknown,
)
from outbox.brokers.native.calls import Calls
from outbox.brokers.native.content import HALF_FLAG, HALF_GROUP
from outbox.brokers.native.dispatch import Dispatch, Outcome
from outbox.brokers.native.positions import Place, Positions
from outbox.brokers.native.producer import Credentials, Producer
from outbox.brokers.remoting.acl import signature
from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.connections import Connections
from outbox.brokers.remoting.reach import Reach
from outbox.brokers.remoting.routes import Routes, split_addresses
from outbox.clock import monotonic
from outbox.verdict import Sighting

CAPABILITIES: Final = Capabilities(confirms=True, finds=True, ends_by_handle=True, check_scope="group")
#: What part of its time ``prepare`` spends on sending at most; the rest is for finding out where the halves lie.
_SENDING: Final = 0.8
#: Brokers that were away and are asked at the same time whether they are back.
_PINGS_AT_ONCE: Final = 4
#: Under which name the client registers: checks go by the group that a half names, so none ever reaches the client.
_SENDING_GROUP: Final = "{group}-native"


class NativeBroker:
    """A RocketMQ cluster under one producer group; see ``outbox.brokers.base.Broker``.

    Halves and plain messages leave through ``librocketmq``, by blocking calls on ``threads`` threads, one wire attempt
    each. A half is a message with the two properties that make it one (``TRAN_MSG``, ``PGROUP``), sent by the client's
    plain producer; it carries the unique id that the caller drew, and afterwards the broker is asked where it lies. So
    ends are two-way, confirmed, kept to their window and repeatable from any process, exactly as those of
    ``RemotingBroker``, and checks are answered by its listener.

    The client does not tell a refusal from a lost answer: what it does not report as stored is ``Unknown``, unless the
    topic or the size of the message already said no.

    It does not survive a fork: a child has to open a broker of its own, before its parent has sent anything.
    """

    def __init__(
        self, name_servers: str, group: str, library: Any, *, threads: int = 32, credentials: Credentials | None = None
    ) -> None:
        """``library``: from ``outbox.brokers.native.library.load``. Nothing is dialled before it is needed."""
        addresses = split_addresses(name_servers)
        sign = None if credentials is None else signature(credentials.access_key, credentials.secret_key)
        self._remoting = RemotingBroker(name_servers, group, sign=sign)
        self._connections = Connections(sign=sign)
        routes = Routes(addresses, self._connections)
        self._positions = Positions(self._connections, routes)
        self._producer = Producer(library, ";".join(addresses), _SENDING_GROUP.format(group=group), credentials)
        self._calls = Calls(threads)
        self._pings = ThreadPoolExecutor(_PINGS_AT_ONCE, "native-ping")
        breakers = Breakers(Reach(self._connections, routes, group).answers, self._pings)
        self._dispatch = Dispatch(self._connections, routes, self._calls, self._producer, breakers)
        self._process = os.getpid()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What this transport can do."""
        return CAPABILITIES

    @property
    def group(self) -> str:
        """The producer group of new halves."""
        return self._remoting.group

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """Sends halves; see ``Broker.prepare``."""
        self._check_usable()
        until = monotonic() + timeout
        half = {HALF_FLAG: "true", HALF_GROUP: self.group}
        sent = self._dispatch.send(messages, half, until - (1 - _SENDING) * timeout)
        places = self._find_places(messages, sent, until)
        return [
            self._stored(message, places) if isinstance(outcome, int) else outcome
            for message, outcome in zip(messages, sent, strict=True)
        ]

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Ends halves; see ``Broker.resolve``."""
        return self._remoting.resolve(endings, until)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """Sends plain messages; see ``Broker.send``."""
        self._check_usable()
        sent = self._dispatch.send(messages, {}, monotonic() + timeout)
        return [
            Sent(message.unique_id) if isinstance(outcome, int) else outcome
            for message, outcome in zip(messages, sent, strict=True)
        ]

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """Looks halves' messages up; see ``Broker.find``. After ``close``: CANNOT_TELL."""
        return self._remoting.find(sought, until)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        """Answers checks from now on; see ``Broker.listen``."""
        self._remoting.listen(topics, on_check, groups)

    def reachable(self, timeout: float) -> bool:
        """Whether a master answers; see ``Broker.reachable``."""
        return self._remoting.reachable(timeout)

    def checks_ready(self) -> bool:
        """Whether every master that has one of the topics knows the groups; see ``Broker.checks_ready``."""
        return self._remoting.checks_ready()

    def close(self) -> None:
        """Ends threads, connections and the client, once its calls under way are over; see ``Broker.close``."""
        if not self._closed:
            self._closed = True
            self._calls.close()
            self._pings.shutdown(wait=False)
            self._remoting.close()
            self._connections.close()
            self._producer.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise BrokerClosed(f"the connection of group {self.group} is closed: open a new one")
        if self._process != os.getpid():
            raise ValueError(
                f"the native client of process {self._process} does not work in a forked child: "
                "open a broker after the fork, or use the transport rocketmq://"
            )

    def _find_places(self, messages: Sequence[Outgoing], sent: Sequence[Outcome], until: float) -> dict[str, Place]:
        offsets: dict[str, dict[str, int]] = {}
        for message, outcome in zip(messages, sent, strict=True):
            if isinstance(outcome, int):
                offsets.setdefault(message.topic, {})[message.unique_id] = outcome
        places: dict[str, Place] = {}
        for topic, halves in offsets.items():
            places |= self._positions.find(topic, halves, until)
        return places

    def _stored(self, message: Outgoing, places: Mapping[str, Place]) -> Stored | Unknown:
        place = places.get(message.unique_id)
        if place is None:
            return Unknown("stored, but no broker has shown in time where it lies")
        return Stored(Half(message.topic, message.unique_id, place.broker, place.handle, self.group))
