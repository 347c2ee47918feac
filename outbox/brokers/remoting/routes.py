"""Where a topic's queues and a broker's master are: asked of the name servers, kept for a while."""

import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.brokers.remoting.commands import Code, Request, refusal
from outbox.brokers.remoting.connections import Away, Connections, RemotingError
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.pipeline import exchange
from outbox.brokers.remoting.route import MASTER, Route, parse_route
from outbox.brokers.remoting.stored import loads_lenient
from outbox.clock import monotonic
from outbox.ports import is_port

log = logging.getLogger(__name__)

#: Seconds for which a route is used without asking again (the Java client's ``pollNameServerInterval``).
FRESH: Final = 30.0
#: Seconds between two questions about a topic whose route seems wrong or cannot be had.
_PAUSE: Final = 1.0
_CALL: Final = 3.0
#: The same where old routes serve as well: a name server that hangs must not use up the time of those who send.
_CALL_KNOWN: Final = 1.0
#: Topics about which it is worth to ask at once.
_SEVERAL: Final = 2


def split_addresses(name_servers: str) -> list[str]:
    """The name servers of ``host:9876;host2:9876``; ``ValueError`` where one is not ``host:port``."""
    addresses = [part.strip() for part in name_servers.split(";") if part.strip()]
    if not addresses or not all(map(_is_address, addresses)):
        raise ValueError(
            f"name servers {name_servers!r}: write host:port (IPv6: [::1]:9876), several with ';' between them"
        )
    return addresses


def _is_address(text: str) -> bool:
    """What has a comma is no host that is away, but several with the wrong sign between them."""
    host, _, port = text.rpartition(":")
    return bool(host) and "," not in host and is_port(port)


class NoRoute(Exception):
    """The name servers answer and do not know the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic}: the name server does not know it")


@dataclass(slots=True)
class _Known:
    route: Route
    asked: float
    wrong: bool = False


def _left(until: float | None, now: float, *, known: bool) -> float:
    """Seconds that a question may take; ``known``: old routes serve as well."""
    most = _CALL_KNOWN if known else _CALL
    return most if until is None else max(0.0, min(most, until - now))


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
        #: When a name server said last, to a question about several, that it does not know the topic.
        self._missing: dict[str, float] = {}
        self._asking = threading.Lock()

    def route(self, topic: str, until: float | None = None) -> Route:
        """The topic's route; ``NoRoute``, or ``Away`` where none was known and no name server answers by ``until``."""
        known = self._known.get(topic)
        now = monotonic()
        if not self._is_due(topic, now):
            if known is None:
                raise NoRoute(topic)
            return known.route
        left = _left(until, now, known=known is not None)
        if not self._asking.acquire(timeout=0 if known is not None else left):
            if known is not None:
                return known.route
            raise Away(f"topic {topic}: its route is being asked for, and no name server has answered in time")
        try:
            return self._refresh(topic, self._known.get(topic), left)
        finally:
            self._asking.release()

    def freshen(self, topics: Collection[str], until: float) -> None:
        """Asks at once about all of the topics about which ``route`` would ask; what is not answered is left to it.

        One round trip instead of one for each: with hundreds of topics, and name servers some ten milliseconds away,
        those would take longer than a batch of messages may.
        """
        now = monotonic()
        due = [topic for topic in topics if self._is_due(topic, now)]
        all_known = self._known.keys() >= set(due)
        left = _left(until, now, known=all_known)
        if len(due) < _SEVERAL or not self._asking.acquire(timeout=0 if all_known else left):
            return
        try:
            self._refresh_all([topic for topic in due if self._is_due(topic, now)], now + left)
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
        found = {name: broker["brokerAddrs"].get(MASTER) for name, broker in table.items()}
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

    def _is_due(self, topic: str, now: float) -> bool:
        """Whether a name server is to be asked about the topic."""
        known = self._known.get(topic)
        if known is None:
            return now - self._missing.get(topic, -math.inf) >= _PAUSE
        return now - known.asked >= (_PAUSE if known.wrong else self._fresh)

    def _refresh_all(self, topics: Sequence[str], until: float) -> None:
        """Of each name server in turn, the last good one first, all that is left; then old routes have to serve."""
        addresses = list(self._name_servers)
        for place, address in enumerate(addresses):
            if not topics:
                return
            share = max(0.0, until - monotonic()) / (len(addresses) - place)
            topics = self._answered(address, topics, monotonic() + share)
        for known in filter(None, map(self._known.get, topics)):
            known.asked, known.wrong = monotonic(), True

    def _answered(self, address: str, topics: Sequence[str], until: float) -> Sequence[str]:
        """Asks one name server; the topics about which it said nothing of use."""

        def encode(first: int) -> list[bytes]:
            """One question for each topic."""
            ask = self._connections.request
            return [ask(Request.TOPIC_ROUTE, place, {"topic": topic}) for place, topic in enumerate(topics, first)]

        answers = exchange(self._connections, address, len(topics), encode, until, point="routes.after_write")
        if answers.reason:
            log.info("%d topics: their routes: %s", len(topics), answers.reason)
        told = zip(topics, answers.frames, strict=True)
        left = [topic for topic, answer in told if answer is None or not self._note(topic, answer)]
        if not left:
            self._prefer(address)
        return left

    def _note(self, topic: str, answer: Frame) -> bool:
        """Keeps what a name server said of one of several topics; False: it is of no use."""
        known = self._known.get(topic)
        if answer.code == Code.TOPIC_NOT_EXIST and known is None:
            self._missing[topic] = monotonic()
            return True
        if answer.code != Code.SUCCESS:
            return False
        try:
            self._known[topic] = _Known(parse_route(answer.body), monotonic())
        except Away as problem:
            log.info("topic %s: %s", topic, problem)
            return False
        self._missing.pop(topic, None)
        return True

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
                raise NoRoute(ext.get("topic", ""))
            if answer.code == Code.SUCCESS:
                self._prefer(address)
                return answer.body
            problems.append(f"{address}: {refusal(answer.code, answer.remark)}")
        raise Away("no name server answers: " + "; ".join(problems))

    def _prefer(self, address: str) -> None:
        if self._name_servers[0] != address:
            self._name_servers = [address, *(other for other in self._name_servers if other != address)]
