"""What can go wrong; each fault is over when its function returns, apart from dead processes, and says what it hit."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from outbox.lifecycle import State
from tests.crash.cluster import ProxiedBroker
from tests.crash.fleet import CHECKBACKS, LEASES_OVER, RELAYS, Fleet
from tests.services.server import Server

#: Points of ``outbox.faults`` that a relay comes by with every pass.
PASS_POINTS: Final = ("relay.after_claim", "relay.before_decide", "relay.before_commit", "relay.before_settle")
#: Seconds in which an armed process comes by its point, if anything is left for it to do.
REACHED: Final = 20.0
#: Seconds for which the network holds a request back: well below the grace of the commit lease.
STALL: Final = 1.5


@dataclass(frozen=True, slots=True)
class Target:
    """All that can be hit."""

    fleet: Fleet
    database: Server
    broker: ProxiedBroker
    random: Random


def kill_relay(target: Target) -> str:
    """SIGKILL at a random moment."""
    return _kill(target, RELAYS)


def kill_check_back(target: Target) -> str:
    """SIGKILL at a random moment."""
    return _kill(target, CHECKBACKS)


def kill_consumer(target: Target) -> str:
    """SIGKILL at a random moment."""
    return _kill(target, ("consumer",))


def kill_producer(target: Target) -> str:
    """SIGKILL at a random moment."""
    moment = _random_moment(target)
    target.fleet.kill_producer()
    return f"producer, {moment}"


def kill_relay_at_point(target: Target) -> str:
    """Both relays die at the same point, so that one of them is sure to meet it."""
    point = f"{target.random.choice(PASS_POINTS)}@{target.random.randint(1, 2)}"
    for role in RELAYS:
        target.fleet.launch(role, fault=f"{point}=kill")
    reached = target.fleet.comes_to(lambda: any(map(target.fleet.dead, RELAYS)), REACHED)
    for role in RELAYS:
        target.fleet.kill(role)
    return f"relays, {point}{'' if reached else ', not reached: killed instead'}"


def freeze_relay_at_point(target: Target) -> str:
    """A relay stops at a point, and goes on once its leases are over and others have done its work."""
    point = target.random.choice(PASS_POINTS)
    role, other = target.random.sample(RELAYS, 2)
    target.fleet.kill(other)
    target.fleet.launch(role, fault=f"{point}=pause")
    reached = target.fleet.comes_to(lambda: target.fleet.frozen(role), REACHED)
    target.fleet.launch(other)
    if not reached:
        target.fleet.kill(role)  # or it would stop at that point later, for good
        return f"{role}, {point}, not reached: killed instead"
    time.sleep(LEASES_OVER)
    target.fleet.thaw(role)
    return f"{role}, {point}, {LEASES_OVER:.0f} s"


def freeze_relay(target: Target) -> str:
    """A relay stops at a random moment for longer than its lease."""
    moment = _random_moment(target)
    role = target.random.choice(RELAYS)
    target.fleet.freeze(role)
    time.sleep(LEASES_OVER)
    target.fleet.thaw(role)
    return f"{role}, {moment}, {LEASES_OVER:.0f} s"


def kill_check_back_at_point(target: Target) -> str:
    """The relays die with halves in hand, and the only process that is asked about them dies as well."""
    point = f"checkback.after_hold@{target.random.randint(1, 3)}"
    relay_point = target.random.choice(PASS_POINTS[1:3])
    first, second = target.random.sample(CHECKBACKS, 2)
    for role in RELAYS:
        target.fleet.launch(role, fault=f"{relay_point}=kill")
    target.fleet.comes_to(lambda: any(map(target.fleet.dead, RELAYS)), REACHED)
    for role in (*RELAYS, second):
        target.fleet.kill(role)
    target.fleet.launch(first, fault=f"{point}=kill")
    reached = target.fleet.comes_to(lambda: target.fleet.dead(first), LEASES_OVER + REACHED)
    target.fleet.kill(first)
    return f"{first}, {point} after {relay_point}{'' if reached else ', not reached: killed instead'}"


def kill_broker(target: Target) -> str:
    """SIGKILL within three seconds after commits: the broker forgets which halves it removed."""
    before = target.fleet.states()[State.DELIVERED]
    target.fleet.comes_to(lambda: target.fleet.states()[State.DELIVERED] > before, REACHED)
    after = target.random.uniform(0, 3)
    time.sleep(after)
    target.broker.kill()
    target.broker.restart()
    return f"broker, {after:.2f} s after commits"


def kill_database(target: Target) -> str:
    """SIGKILL; it is back within two seconds and its recovery."""
    moment, away = _random_moment(target), target.random.uniform(0, 2)
    target.database.kill()
    time.sleep(away)
    target.database.restart()
    target.fleet.database.engine.dispose()  # our own connections died with it
    return f"database, {moment}, {away:.2f} s"


def stall_network(target: Target) -> str:
    """Requests and answers are late."""
    moment, seconds = _random_moment(target), target.random.uniform(0.2, STALL)
    target.broker.network.stall(seconds)
    return f"network, {moment}, {seconds:.2f} s"


def cut_network(target: Target) -> str:
    """All connections to the broker end."""
    moment = _random_moment(target)
    target.broker.network.cut()
    return f"network, {moment}"


def lose_answers(target: Target) -> str:
    """Requests take effect, but nobody hears of it."""
    moment, seconds = _random_moment(target), target.random.uniform(0.2, 4)
    target.broker.network.lose_answers(seconds)
    return f"network, {moment}, {seconds:.2f} s"


Fault = Callable[[Target], str]

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "kill relay": kill_relay,
        "kill relay at point": kill_relay_at_point,
        "freeze relay": freeze_relay,
        "freeze relay at point": freeze_relay_at_point,
        "kill check-back": kill_check_back,
        "kill check-back at point": kill_check_back_at_point,
        "kill consumer": kill_consumer,
        "kill producer": kill_producer,
        "kill broker": kill_broker,
        "kill database": kill_database,
        "stall network": stall_network,
        "cut network": cut_network,
        "lose answers": lose_answers,
    }
)


def dealt(random: Random) -> Iterator[str]:
    """Names of faults without end: each comes once before any comes again."""
    while True:
        yield from random.sample(list(FAULTS), len(FAULTS))


def _kill(target: Target, roles: tuple[str, ...]) -> str:
    moment = _random_moment(target)
    role = target.random.choice(roles)
    target.fleet.kill(role)
    return f"{role}, {moment}"


def _random_moment(target: Target) -> str:
    """Waits until the batch is on its way, or nearly so, or already done."""
    seconds = target.random.uniform(0.5, 2.5)
    time.sleep(seconds)
    return f"{seconds:.2f} s into the batch"
