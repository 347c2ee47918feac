"""Beyond the one assumption about COMMIT: one that reaches the broker after its lease can make a second message.

Nothing is lost then, at most the late messages come twice, and the inbox makes one effect of each.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from outbox.lifecycle import State
from tests.crash.audit import Audit, audited
from tests.crash.campaign import DRAINED, deployed, drain
from tests.crash.fleet import RELAYS, Fleet
from tests.crash.proxy import Proxy

#: Orders written around each injection.
BATCH: Final = 100
#: With one pass at a time the rows that are decided and not delivered are those whose COMMITs are late.
ONE_PASS: Final = {"OUTBOX_PASSES": "1"}
#: Seconds in which a late COMMIT shows, if it made a second message.
SHOWN: Final = 5.0

#: Makes COMMITs late; returns what lets them go on. None: there is no network in between.
Injection = Callable[[Fleet, Proxy | None], Callable[[], None]]


def late_commit(fleet: Fleet, network: Proxy | None) -> Callable[[], None]:
    """The network keeps written COMMITs, even when their sender closes the connection, and delivers them in the end."""
    assert network is not None
    fleet.launch("relay-1", "--no-checkback", fault="relay.before_commit=pause", **ONE_PASS)
    fleet.wait("a relay with a decision in hand", lambda: fleet.frozen("relay-1"), DRAINED)
    release = network.hold_requests()
    fleet.thaw("relay-1")
    return release


def pause(fleet: Fleet, _: Proxy | None) -> Callable[[], None]:
    """A relay stops exactly between its last look at the clock and the write, for longer than its lease."""
    fleet.enlist("relay-1", fleet.late("relay", "--no-checkback", **ONE_PASS))
    fleet.wait("a relay about to write COMMIT", lambda: fleet.frozen("relay-1"), DRAINED)
    return lambda: fleet.thaw("relay-1")


BOUNDARIES: Final[Mapping[str, Injection]] = MappingProxyType({"late-commit": late_commit, "pause": pause})


def run(name: str, database: str, times: int, told: Callable[[str], None]) -> Audit:
    """Injects so many times; the audit excuses as many repeats as rows were hit."""
    with deployed(database) as (_, cluster, fleet):
        hit = 0
        for number in range(times):
            hit += inject(BOUNDARIES[name], fleet, cluster.broker.network, number)
            told(f"{database}, {name} {number + 1}: {hit} rows hit so far")
        for role in RELAYS:
            fleet.kill(role)  # they were started without a check-back
        fleet.revive()
        drain(fleet)
        return audited(fleet, times, range(1, times * BATCH + 1), excused=hit)


def inject(injection: Injection, fleet: Fleet, network: Proxy | None, number: int) -> int:
    """Writes a batch and makes COMMITs of it late; for how many rows at most."""
    fleet.kill("relay-2")
    fleet.write(number * BATCH + 1, (number + 1) * BATCH)
    release = injection(fleet, network)
    hit = fleet.states()[State.COMMITTED]
    # The other relay takes the rows over once their lease is over, sees that they are not visible, and commits them.
    fleet.launch("relay-2", "--no-checkback")
    fleet.finish_batch(DRAINED)
    fleet.wait("the rows to be delivered without the late COMMITs", fleet.finished, DRAINED)
    visible = len(fleet.visible())
    release()
    fleet.comes_to(lambda: len(fleet.visible()) > visible, SHOWN)
    return hit
