"""A RocketMQ of the campaign's own, whose broker is only reached through a bad network."""

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from tests.crash.proxy import Proxy
from tests.services.errors import ServiceMissing
from tests.services.rocketmq.cluster import DEFAULT_VERSION, BrokerServer, NameServer
from tests.services.rocketmq.configuration import CHECKS
from tests.services.server import Server

#: Where the broker listens; it announces 127.0.0.1 with the same port, where the proxy stands.
BEHIND: Final = "127.0.0.2"
#: Milliseconds after which a new name server knows the broker again: as few as the broker takes.
REGISTERED: Final = 10_000


class ProxiedBroker(BrokerServer):
    """A broker behind a proxy: clients, and the question whether it is ready, go through that."""

    def __init__(self, name_server: str, settings: Mapping[str, object]) -> None:
        settings = {**CHECKS["fast"], "bindAddress": BEHIND, "registerNameServerPeriod": REGISTERED, **settings}
        super().__init__(DEFAULT_VERSION, name_server, settings, optimised=False)
        self._network: Proxy | None = None

    @property
    def network(self) -> Proxy:
        """What lies between the broker and everybody else."""
        assert self._network is not None
        return self._network

    def stop(self) -> None:
        self._close_network()
        super().stop()

    def _start_on(self, port: int) -> None:
        self._close_network()
        self._network = Proxy(("127.0.0.1", port), (BEHIND, port))
        super()._start_on(port)

    def _close_network(self) -> None:
        if self._network is not None:
            self._network.close()
            self._network = None


class Cluster:
    """A name server and a broker behind a proxy; stops exactly what it started."""

    def __init__(self, **settings: object) -> None:
        """``settings``: lines of the broker's file."""
        _require_second_address()
        self.name_server = NameServer(DEFAULT_VERSION, optimised=False)
        self.broker: ProxiedBroker
        self._settings = settings
        self._grpc: Server | None = None

    @property
    def namesrv(self) -> str:
        """``host:port`` of the name server."""
        return self.name_server.url

    def grpc_proxy(self) -> str:
        """``host:port`` of a RocketMQ proxy for gRPC clients, started with the first call."""
        if self._grpc is None:
            from tests.services.rocketmq.proxy import Proxy as GrpcProxy  # needs the gRPC client's library

            self._grpc = GrpcProxy(self.namesrv).start()
        return self._grpc.url

    def __enter__(self) -> Self:
        self.name_server.start()
        try:
            self.broker = ProxiedBroker(self.namesrv, self._settings)
            self.broker.start()
        except BaseException:
            self.name_server.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as started:
            started.callback(self.name_server.stop)
            started.callback(self.broker.stop)
            if self._grpc is not None:
                started.callback(self._grpc.stop)


def _require_second_address() -> None:
    """Linux takes all of 127/8 for loopback, other systems only 127.0.0.1 until they are told more."""
    with socket.socket() as probe:
        try:
            probe.bind((BEHIND, 0))
        except OSError as error:
            raise ServiceMissing(f"{BEHIND} is no address here: on macOS, ifconfig lo0 alias {BEHIND}") from error
