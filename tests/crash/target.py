"""What the faults hit."""

import time
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.crash.cluster import Cluster, ProxiedBroker
from tests.crash.fleet import Fleet
from tests.crash.proxy import Proxy
from tests.services.server import Server

#: Seconds in which an armed process comes by its point, if anything is left for it to do.
REACHED: Final = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """All that can be hit, and the dice of one fault."""

    fleet: Fleet
    database: Server
    cluster: Cluster
    random: Random

    @property
    def broker(self) -> ProxiedBroker:
        """The broker."""
        return self.cluster.broker

    @property
    def network(self) -> Proxy:
        """What lies between the broker and everybody else."""
        return self.cluster.broker.network

    def random_moment(self) -> str:
        """Waits until the batch is on its way, or nearly so, or already done."""
        seconds = self.random.uniform(0.5, 2.5)
        time.sleep(seconds)
        return f"{seconds:.2f} s into the batch"
