"""What a name server says of one topic: its queues, and the masters that have them."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from outbox.brokers.remoting.connections import Away
from outbox.brokers.remoting.stored import loads_lenient

#: Bits of ``perm`` (``PermName``), and the id of a master (``MixAll.MASTER_ID``).
_WRITE: Final = 2
_READ: Final = 4
MASTER: Final = "0"


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


def parse_route(content: bytes) -> Route:
    """A route from the body of the name server's answer (``TopicRouteData``); ``Away`` where it is none."""
    try:
        return _route(loads_lenient(content))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise Away(f"the name server's answer is no route: {problem!r}") from problem


def _route(found: dict[str, Any]) -> Route:
    masters = {
        broker["brokerName"]: broker["brokerAddrs"][MASTER]
        for broker in found.get("brokerDatas") or ()
        if MASTER in broker["brokerAddrs"]
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
