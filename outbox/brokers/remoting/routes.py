"""Where a topic's queues and a broker's master are: asked of the name servers, kept for a while."""

import logging
import threading
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from outbox.brokers.remoting.commands import Code, Request, refusal
from outbox.brokers.remoting.connections import Away, Connections, RemotingError
from outbox.brokers.remoting.stored import loads_lenient
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds for which a route is used without asking again (the Java client's ``pollNameServerInterval``).
FRESH: Final = 30.0
#: Seconds between two questions about a topic whose route seems wrong or cannot be had.
_PAUSE: Final = 1.0
_CALL: Final = 3.0
#: Bits of ``perm`` (``PermName``), and the id of a master (``MixAll.MASTER_ID``).
_WRITE: Final = 2
_READ: Final = 4
_MASTER: Final = "0"


def split_addresses(name_servers: str) -> list[str]:
    """The name servers of ``host:9876;host2:9876``; ``ValueError`` where one is not ``host:port``."""
    addresses = [part.strip() for part in name_servers.split(";") if part.strip()]
    wrong = [address for address in addresses if not address.rpartition(":")[2].isdigit() or address.startswith(":")]
    if wrong or not addresses:
        raise ValueError(f"name servers {name_servers!r}: write host:port, several with ';' between them")
    return addresses


class NoRoute(Exception):
    """The name servers answer and do not know the topic."""


class Queue(NamedTuple):
    """A queue that takes messages."""

    broker: str
    address: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where one topic lives."""

    #: Queues that may be written, of brokers whose master is there; sorted, the same in every process.
    writable: tuple[Queue, ...]
    #: Address of the master of each broker that has the topic.
    masters: Mapping[str, str]
    #: Number of readable queues at each of these brokers.
    readable: Mapping[str, int]

    def lane(self, lane: str) -> Queue:
        """The queue of a lane: the same for every process that sees the same route."""
        return self.writable[zlib.crc32(lane.encode()) % len(self.writable)]


@dataclass(slots=True)
class _Known:
    route: Route
    asked: float
    wrong: bool = False


def parse_route(content: bytes) -> Route:
    """A route from the body of the name server's answer (``TopicRouteData``); ``Away`` where it is none."""
    try:
        return _route(loads_lenient(content))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise Away(f"the name server's answer is no route: {problem!r}") from problem


def _route(found: dict[str, Any]) -> Route:
    masters = {
        broker["brokerName"]: broker["brokerAddrs"][_MASTER]
        for broker in found.get("brokerDatas") or ()
        if _MASTER in broker["brokerAddrs"]
    }
    shares: list[dict[str, Any]] = [share for share in found.get("queueDatas") or () if share["brokerName"] in masters]
    return Route(
        writable=tuple(
            sorted(
                Queue(share["brokerName"], masters[share["brokerName"]], number)
                for share in shares
                if share["perm"] & _WRITE
                for number in range(share["writeQueueNums"])
            )
        ),
        masters=masters,
        readable={share["brokerName"]: share["readQueueNums"] for share in shares if share["perm"] & _READ},
    )


class Routes:
    """Routes by topic; safe to use from several threads.

    An old route is used as long as no name server answers, and where the name servers forget a topic that was there:
    a broker that is down takes its topics with it.
    """

    def __init__(self, name_servers: Sequence[str], connections: Connections, fresh: float = FRESH) -> None:
        """``fresh``: seconds for which a route is used without asking again."""
        self._name_servers = list(name_servers)
        self._fresh = fresh
        self._connections = connections
        self._known: dict[str, _Known] = {}
        self._asking = threading.Lock()

    def route(self, topic: str, until: float | None = None) -> Route:
        """The topic's route; ``NoRoute``, or ``Away`` where none was known and no name server answers by ``until``."""
        known = self._known.get(topic)
        now = monotonic()
        if known is not None and now - known.asked < (_PAUSE if known.wrong else self._fresh):
            return known.route
        left = _CALL if until is None else max(0.0, min(_CALL, until - now))
        if not self._asking.acquire(timeout=0 if known is not None else left):
            if known is not None:
                return known.route
            raise Away(f"topic {topic}: its route is being asked for, and no name server has answered in time")
        try:
            return self._refresh(topic, self._known.get(topic), left)
        finally:
            self._asking.release()

    def master(self, topic: str, broker: str, until: float | None = None) -> str:
        """The address of a broker's master at this moment; ``Away`` where nobody knows it.

        Each broker registers a topic of its own name, which helps where ``topic`` has left it.
        """
        for name in (topic, broker):
            try:
                address = self.route(name, until).masters.get(broker)
            except NoRoute:
                continue
            if address is not None:
                return address
        raise Away(f"broker {broker}: no name server knows a master of it now")

    def doubt(self, address: str) -> None:
        """Has the routes that name ``address`` asked for again soon: nobody answers there."""
        for known in list(self._known.values()):
            if address in known.route.masters.values():
                known.wrong = True

    def masters(self) -> Collection[str]:
        """Addresses of all masters that the routes in use name."""
        return {address for known in list(self._known.values()) for address in known.route.masters.values()}

    def brokers(self) -> Mapping[str, str]:
        """The masters of the whole cluster, as the name servers see them now; ``RemotingError``."""
        table = loads_lenient(self._ask(Request.CLUSTER_INFO, {}, _CALL)).get("brokerAddrTable") or {}
        found = {name: broker["brokerAddrs"].get(_MASTER) for name, broker in table.items()}
        return {name: address for name, address in found.items() if address is not None}

    def masters_of(self, topics: Sequence[str]) -> Mapping[str, str]:
        """Name and address of each master that has one of ``topics`` (none named: of every master that is known).

        Topics without a route are left out.
        """
        if not topics:
            return self.brokers()
        found: dict[str, str] = {}
        for topic in topics:
            try:
                found.update(self.route(topic).masters)
            except NoRoute:
                continue
        return found

    def _refresh(self, topic: str, known: _Known | None, timeout: float) -> Route:
        try:
            route = parse_route(self._ask(Request.TOPIC_ROUTE, {"topic": topic}, timeout))
        except (RemotingError, NoRoute) as problem:
            if known is None:
                raise
            log.info("topic %s: keeping the old route: %s", topic, problem)
            known.asked, known.wrong = monotonic(), True
            return known.route
        self._known[topic] = _Known(route, monotonic())
        return route

    def _ask(self, code: Request, ext: Mapping[str, str], timeout: float) -> bytes:
        """Asks the name servers in turn, the last good one first; ``NoRoute`` where one says so, ``Away``."""
        problems = []
        until, addresses = monotonic() + timeout, list(self._name_servers)
        for place, address in enumerate(addresses):
            share = max(0.0, until - monotonic()) / (len(addresses) - place)
            try:
                answer = self._connections.call(address, code, ext, timeout=share)
            except RemotingError as problem:
                problems.append(str(problem))
                continue
            if answer.code == Code.TOPIC_NOT_EXIST:
                raise NoRoute(f"topic {ext.get('topic')}: the name server does not know it")
            if answer.code == Code.SUCCESS:
                self._prefer(address)
                return answer.body
            problems.append(f"{address}: {refusal(answer.code, answer.remark)}")
        raise Away("no name server answers: " + "; ".join(problems))

    def _prefer(self, address: str) -> None:
        if self._name_servers[0] != address:
            self._name_servers = [address, *(other for other in self._name_servers if other != address)]
