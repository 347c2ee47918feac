"""What relays and check-back processes may ship through; the consumer always receives over the remoting protocol."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tests.crash.cluster import Cluster
from tests.services.librocketmq import librocketmq


@dataclass(frozen=True, slots=True)
class Transport:
    """A broker URL, and what goes with it."""

    url: Callable[[Cluster], str]
    #: Whether no crash makes a second message; for the others the guarantees page names the cases.
    exact: bool = True
    message_type: str = ""
    #: Of relays and check-back processes, and lines of the broker's file.
    settings: Callable[[], Mapping[str, str]] = dict
    broker: Mapping[str, object] = field(default_factory=dict)


TRANSPORTS: Final[Mapping[str, Transport]] = MappingProxyType(
    {
        "remoting": Transport(lambda cluster: f"rocketmq://{cluster.namesrv}"),
        "native": Transport(
            lambda cluster: f"rocketmq+native://{cluster.namesrv}",
            exact=False,
            settings=lambda: {"OUTBOX_NATIVE_LIBRARY": str(librocketmq())},
        ),
        # A broker that asks 15 times, about once in two seconds, and a horizon behind the last of them.
        "grpc": Transport(
            lambda cluster: f"rocketmq+grpc://{cluster.grpc_proxy()}",
            exact=False,
            message_type="TRANSACTION",
            settings=lambda: {"OUTBOX_CHECK_HORIZON": "60"},
            broker={"transactionCheckMax": 15},
        ),
    }
)
