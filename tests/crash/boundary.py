"""Beyond the one assumption about COMMIT: one that reaches the broker after its lease makes a second message.

Nothing is lost then, at most the late messages come twice, and the inbox makes one effect of each.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from outbox.lifecycle import State
from tests.crash.audit import Audit, audited
from tests.crash.campaign import DRAINED, deployed, drain
from tests.crash.cluster import Cluster
from tests.crash.fleet import Fleet

#: Orders written around each injection.
BATCH: Final = 100

#: Makes COMMITs late and returns how many rows they were for at most, and what lets them go on.
Injection = Callable[[Fleet, Cluster], tuple[int, Callable[[], None]]]


def late_commit(fleet: Fleet, cluster: Cluster) -> tuple[int, Callable[[], None]]:
    """The network keeps written COMMITs, even when their sender closes the connection, and delivers them in the end."""
    fleet.launch("relay-1", "--no-checkback", fault="relay.before_commit=pause")
    fleet.wait("a relay with a decision in hand", lambda: fleet.frozen("relay-1"), DRAINED)
    decided = fleet.states()[State.COMMITTED]
    release = cluster.broker.network.hold_requests()
    fleet.thaw("relay-1")
    return decided, release


def pause(fleet: Fleet, _: Cluster) -> tuple[int, Callable[[], None]]:
    """A relay stops exactly between its last look at the clock and the write, for longer than its lease."""
    fleet.enlist("relay-1", fleet.late("relay", "--no-checkback"))
    fleet.wait("a relay about to write COMMIT", lambda: fleet.frozen("relay-1"), DRAINED)
    return fleet.states()[State.COMMITTED], lambda: fleet.thaw("relay-1")


BOUNDARIES: Final[Mapping[str, Injection]] = MappingProxyType({"late-commit": late_commit, "pause": pause})


def run(name: str, database: str, times: int, told: Callable[[str], None]) -> Audit:
    """Injects so many times; the audit excuses as many repeats as rows were hit."""
    with deployed(database) as (_, cluster, fleet):
        hit = 0
        for number in range(times):
            hit += _inject(BOUNDARIES[name], fleet, cluster, number)
            told(f"{database}, {name} {number + 1}: {hit} rows hit so far")
        fleet.revive()
        drain(fleet)
        return audited(fleet, times, range(1, times * BATCH + 1), excused=hit)


def _inject(injection: Injection, fleet: Fleet, cluster: Cluster, number: int) -> int:
    fleet.kill("relay-2")
    fleet.write(number * BATCH + 1, (number + 1) * BATCH)
    hit, release = injection(fleet, cluster)
    # The other relay takes the rows over once their lease is over, sees that they are not visible, and commits them.
    fleet.launch("relay-2", "--no-checkback")
    fleet.finish_batch(DRAINED)
    fleet.wait("the rows to be delivered without the late COMMITs", fleet.finished, DRAINED)
    release()
    return hit
