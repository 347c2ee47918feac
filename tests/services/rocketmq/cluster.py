"""A name server and a broker on free loopback ports; both may crash and come back."""

import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from types import TracebackType
from typing import Final, Self

from outbox.brokers.remoting.connections import Away, Connections, RemotingError
from outbox.brokers.remoting.routes import NoRoute, Routes, split_addresses
from tests.services.errors import ServiceFailed
from tests.services.ports import is_free
from tests.services.rocketmq.admin import Admin, PatientConnections
from tests.services.rocketmq.configuration import (
    CHECKS,
    PATIENT,
    TLS_FILE,
    Checks,
    broker_properties,
    launch,
    write_logging,
    write_properties,
)
from tests.services.rocketmq.jars import jars, java
from tests.services.server import Server

#: 5.5.0 keeps one core busy once a transaction has ended (apache/rocketmq#10966).
DEFAULT_VERSION: Final = "5.4.0"
#: Created at the start: single topics are refused until the broker has registered, two at once are not.
PROBES: Final = ("outbox-probe-a", "outbox-probe-b")
#: Seconds within which a topic that was created has a route; generous, since the machine may be shared.
ROUTE_DEADLINE: Final = 60.0
_UPDATE_BROKER_CONFIG: Final = 25


#: How a cluster is asked; one with ACL or TLS wants more than the default.
Connect = Callable[[], Connections]


def create_topics(
    namesrv: str,
    topics: Collection[str],
    *,
    queues: int = 8,
    message_type: str = "",
    connect: Connect = PatientConnections,
) -> None:
    """Creates topics at every broker of a cluster and waits until each name server leads to all of them.

    ``message_type``: what a proxy lets in, such as TRANSACTION; "": NORMAL.
    """
    attributes = {"+message.type": message_type} if message_type else {}
    with Admin(namesrv, connect()) as admin:
        brokers = admin.brokers()
        for address in brokers.values():
            admin.create_topics(address, topics, queues=queues, attributes=attributes)
    deadline = time.monotonic() + ROUTE_DEADLINE
    for server in split_addresses(namesrv):
        with closing(connect()) as connections:
            routes, missing = Routes([server], connections, fresh=0.0), set(topics)
            while missing := {topic for topic in missing if not _leads_to(routes, topic, brokers)}:
                if time.monotonic() > deadline:
                    raise ServiceFailed(f"topics {sorted(missing)} have no route after {ROUTE_DEADLINE} s")
                time.sleep(0.02)


def _leads_to(routes: Routes, topic: str, brokers: Collection[str]) -> bool:
    """Whether a client that asks this name server finds the topic at all brokers; one that is away is not asked."""
    try:
        route = routes.route(topic)
    except NoRoute:
        return False
    except Away:
        return True
    return route.masters.keys() >= set(brokers) and bool(route.writable)


class JavaServer(Server):
    """A server of RocketMQ; the store is thrown away, so it is killed."""

    stop_signal = signal.SIGKILL
    abandon_signal = signal.SIGKILL
    heap = "64m"
    main_class: str

    def __init__(
        self,
        version: str,
        *,
        optimised: bool,
        connect: Connect = PatientConnections,
        tls: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self._tls = tls
        self._connect = connect
        self._java = java()
        self._jars = jars(version)
        self._optimised = optimised

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def initialise(self) -> None:
        write_logging(self.folder)
        if self._tls:
            write_properties(self.folder / TLS_FILE, self._tls)

    def properties(self) -> Mapping[str, object]:
        """What the server's file says."""
        raise NotImplementedError

    def command(self) -> list[str]:
        file = write_properties(self.folder / "server.properties", self.properties())
        flags = launch(self._java, self._jars, self.folder, self.heap, optimised=self._optimised)
        return ["env", f"ROCKETMQ_HOME={self.folder}", *flags, self.main_class, "-c", str(file)]


class NameServer(JavaServer):
    """The name server."""

    name = "rocketmq-namesrv"
    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"

    def properties(self) -> Mapping[str, object]:
        return {"listenPort": self.port}

    def is_ready(self) -> bool:
        with Admin(self.url, self._connect()) as admin:
            try:
                admin.brokers()
            except RemotingError:
                return False
        return True


class BrokerServer(JavaServer):
    """The broker; ready once topics can be created and have a route."""

    name = "rocketmq-broker"
    heap = "256m"
    main_class = "org.apache.rocketmq.broker.BrokerStartup"

    def __init__(
        self,
        version: str,
        name_server: str,
        settings: Mapping[str, object],
        *,
        optimised: bool,
        connect: Connect = PatientConnections,
        tls: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(version, optimised=optimised, connect=connect, tls=tls)
        self._name_server = name_server
        self._settings = settings

    def properties(self) -> Mapping[str, object]:
        patience = {} if self._optimised else PATIENT
        return {**broker_properties(self.folder, self._name_server, self.port), **patience, **self._settings}

    def is_ready(self) -> bool:
        with Admin(self._name_server, self._connect()) as admin:
            try:
                admin.create_topics(self.url, PROBES)
                return self.url in admin.routes.route(PROBES[0]).masters.values()
            except (RemotingError, NoRoute):
                return False

    def configure(self, settings: Mapping[str, object]) -> None:
        """Changes settings of the running broker (``RequestCode.UPDATE_BROKER_CONFIG``); it writes them to its file."""
        connections = self._connect()
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        try:
            connections.ask(self.url, _UPDATE_BROKER_CONFIG, {}, lines.encode())
        finally:
            connections.close()

    def _start_on(self, port: int) -> None:
        """The broker binds two more ports beside its own."""
        if not (is_free(port - 2) and is_free(port + 1)):
            raise ServiceFailed(f"{self.name}: port {port - 2} or {port + 1} is taken")
        super()._start_on(port)


class RocketMQ:
    """A cluster of one name server and one broker that is ours; stops exactly what it started."""

    def __init__(
        self,
        *,
        checks: Checks = "fast",
        version: str = DEFAULT_VERSION,
        optimised: bool = False,
        settings: Mapping[str, object] | None = None,
        connect: Connect = PatientConnections,
        tls: Mapping[str, object] | None = None,
    ) -> None:
        """``checks``: about one a second, or the broker's defaults; ``optimised``: for benchmarks, starts slower.

        ``settings``: lines of the broker's file; ``connect``: how to ask a cluster that they close to strangers;
        ``tls``: lines of the file of both servers' TLS, which then is enforced.
        """
        self._connect = connect
        self._tls = tls
        self._version = version
        self._optimised = optimised
        self._settings = {**CHECKS[checks], **(settings or {})}
        self._name_server = NameServer(version, optimised=optimised, connect=connect, tls=tls)
        self._broker: BrokerServer | None = None

    @property
    def namesrv(self) -> str:
        """``host:port`` of the name server."""
        return self._name_server.url

    @property
    def url(self) -> str:
        """As ``namesrv``: where clients connect."""
        return self.namesrv

    @property
    def broker(self) -> BrokerServer:
        """The broker's process."""
        if self._broker is None:
            raise ServiceFailed("the broker is not started: use RocketMQ in a with statement or call start()")
        return self._broker

    def start(self) -> Self:
        """Starts both and returns once the broker is routable."""
        self._name_server.start()
        try:
            self._broker = BrokerServer(
                self._version,
                self.namesrv,
                self._settings,
                optimised=self._optimised,
                connect=self._connect,
                tls=self._tls,
            ).start()
        except BaseException:
            self.stop()
            raise
        return self

    def create_topics(self, topics: Collection[str], *, queues: int = 8) -> None:
        """Creates topics and waits until they have a route."""
        create_topics(self.namesrv, topics, queues=queues, connect=self._connect)

    def kill_broker(self) -> None:
        """SIGKILL; the store stays."""
        self.broker.kill()

    def restart_broker(self) -> None:
        """Starts the broker again on the same store and port."""
        self.broker.restart()

    def stop(self) -> None:
        """Ends both and removes their folders; to stop twice is fine."""
        try:
            if self._broker is not None:
                self._broker.stop()
        finally:
            self._name_server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
