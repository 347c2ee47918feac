"""A RocketMQ 5 proxy before a cluster: what gRPC clients talk to."""

import json
from collections.abc import Mapping
from typing import Final

import grpc

from outbox.brokers.grpc.library import Code, MessagingServiceStub, QueryRouteRequest
from tests.services.ports import free_port
from tests.services.rocketmq.admin import Admin
from tests.services.rocketmq.cluster import DEFAULT_VERSION, PROBES, JavaServer, create_topics
from tests.services.rocketmq.configuration import launch
from tests.services.rocketmq.jars import jars

#: Proxies of one cluster tell each other of their clients by it; without a route to it a proxy ends at once.
_SYNCER: Final = "DefaultHeartBeatSyncerTopic"
_PROBE_TIMEOUT: Final = 1.0


class Proxy(JavaServer):
    """A proxy in cluster mode; it comes back on the same port after ``restart``."""

    name = "rocketmq-proxy"
    heap = "256m"
    main_class = "org.apache.rocketmq.proxy.ProxyStartup"

    def __init__(
        self,
        name_server: str,
        *,
        settings: Mapping[str, object] | None = None,
        version: str = DEFAULT_VERSION,
        optimised: bool = False,
    ) -> None:
        """``settings``: members of the proxy's file (``ProxyConfig``)."""
        super().__init__(version, optimised=optimised)
        self._jars = jars(version, "rocketmq-proxy")
        self._name_server = name_server
        self._settings = dict(settings or {})

    def initialise(self) -> None:
        super().initialise()
        create_topics(self._name_server, [_SYNCER, *PROBES], queues=1)

    def properties(self) -> Mapping[str, object]:
        with Admin(self._name_server) as admin:
            address = next(iter(admin.brokers().values()))
            cluster = admin.config(address, ["brokerClusterName"])["brokerClusterName"]
        return {
            "rocketMQClusterName": cluster,
            "namesrvAddr": self._name_server,
            "proxyMode": "CLUSTER",
            "grpcServerPort": self.port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
            # Every second it tells the brokers for which topics it passes checks on; by default every 20 s.
            "transactionHeartbeatPeriodSecond": 1,
            # The shortest time for which a message may be received, and the shortest poll: by default 10 s and 5 s.
            "minInvisibleTimeMillsForRecv": 1000,
            "grpcClientConsumerMinLongPollingTimeoutMillis": 500,
            # A certificate that it makes itself; clients without TLS are served on the same port.
            "tlsTestModeEnable": True,
            **self._settings,
        }

    def command(self) -> list[str]:
        file = self.folder / "rmq-proxy.json"
        file.write_text(json.dumps(self.properties()))
        flags = launch(self._java, self._jars, self.folder, self.heap, optimised=self._optimised)
        configured = f"-Dcom.rocketmq.proxy.configPath={file}"
        asked = ["-n", self._name_server, "-pm", "cluster", "-pc", str(file)]
        return ["env", f"ROCKETMQ_HOME={self.folder}", *flags, configured, self.main_class, *asked]

    def is_ready(self) -> bool:
        """Whether it tells a route."""
        request = QueryRouteRequest()
        request.topic.name = PROBES[0]
        address = request.endpoints.addresses.add()
        address.host, address.port = "127.0.0.1", self.port
        request.endpoints.scheme = 1  # AddressScheme.IPv4
        metadata = [("x-mq-client-id", "probe"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "GRPC_V2")]
        with grpc.insecure_channel(self.url) as channel:
            try:
                answer = MessagingServiceStub(channel).QueryRoute(request, metadata=metadata, timeout=_PROBE_TIMEOUT)
            except grpc.RpcError:
                return False
        return bool(answer.status.code == Code.OK)
