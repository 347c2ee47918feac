"""What can go wrong, by name; each fault is over when its function returns, apart from dead processes and shifted
clocks, and says what it hit."""

import time
from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Final

from tests.crash import network, points, servers
from tests.crash.clock import shift_clock
from tests.crash.fleet import CHECKBACKS, LEASES_OVER, RELAYS
from tests.crash.target import Target


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
    moment = target.random_moment()
    target.fleet.kill_producer()
    return f"producer, {moment}"


def freeze_relay(target: Target) -> str:
    """A relay stops at a random moment for longer than its lease."""
    moment = target.random_moment()
    role = target.random.choice(RELAYS)
    target.fleet.freeze(role)
    time.sleep(LEASES_OVER)
    target.fleet.thaw(role)
    return f"{role}, {moment}, {LEASES_OVER:.0f} s"


Fault = Callable[[Target], str]

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "kill relay": kill_relay,
        "kill relay at point": points.kill_relay_at_point,
        "freeze relay": freeze_relay,
        "freeze relay at point": points.freeze_relay_at_point,
        "kill reconciler at point": points.kill_reconciler_at_point,
        "kill check-back": kill_check_back,
        "kill check-back at point": points.kill_check_back_at_point,
        "freeze check-back at point": points.freeze_check_back_at_point,
        "kill consumer": kill_consumer,
        "kill consumer at point": points.kill_consumer_at_point,
        "kill producer": kill_producer,
        "kill producer at point": points.kill_producer_at_point,
        "shift clock": shift_clock,
        "kill broker": servers.kill_broker,
        "kill broker at point": servers.kill_broker_at_point,
        "kill database": servers.kill_database,
        "kill database at point": servers.kill_database_at_point,
        "name server gone": servers.name_server_gone,
        "stall network": network.stall,
        "cut network": network.cut,
        "cut network after bytes": network.cut_after_bytes,
        "lose answers": network.lose_answers,
        "lose requests": network.lose_requests,
    }
)


def dealt(seed: int) -> Iterator[str]:
    """Names of faults without end: each comes once before any comes again."""
    random = Random(seed)
    while True:
        yield from random.sample(list(FAULTS), len(FAULTS))


def _kill(target: Target, roles: tuple[str, ...]) -> str:
    moment = target.random_moment()
    role = target.random.choice(roles)
    target.fleet.kill(role)
    return f"{role}, {moment}"
