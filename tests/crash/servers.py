"""Crashes of broker, database and name server, at random moments and at the points that matter."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from outbox.lifecycle import State
from tests.crash.fleet import RELAYS
from tests.crash.network import STALL
from tests.crash.points import stop_at
from tests.crash.target import REACHED, Target

#: What is under way when a relay stops there. With commits in flight the network holds them as well.
MOMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "relay.before_decide": "halves outstanding",
        "relay.during_decide": "decision open",
        "relay.before_commit": "commits in flight",
        "commits.after_write": "commits written",
        "relay.before_settle": "commits confirmed",
    }
)


def kill_broker(target: Target) -> str:
    """SIGKILL within three seconds after commits: the broker forgets which halves it removed."""
    before = target.fleet.states()[State.DELIVERED]
    target.fleet.comes_to(lambda: target.fleet.states()[State.DELIVERED] > before, REACHED)
    after = target.random.uniform(0, 3)
    time.sleep(after)
    _crash_broker(target)
    return f"broker, {after:.2f} s after commits"


def kill_broker_at_point(target: Target) -> str:
    """SIGKILL while a relay has halves or commits under way."""
    what = _with_work_under_way(target)
    _crash_broker(target)
    return f"broker, {what}"


def kill_database(target: Target) -> str:
    """SIGKILL; it is back within two seconds and its recovery."""
    moment = target.random_moment()
    return f"database, {moment}, {_crash_database(target):.2f} s"


def kill_database_at_point(target: Target) -> str:
    """SIGKILL while a relay has halves or commits under way."""
    what = _with_work_under_way(target)
    return f"database, {what}, {_crash_database(target):.2f} s"


def name_server_gone(target: Target) -> str:
    """No routes for a while; a relay that starts meanwhile knows none at all."""
    moment, away, start = target.random_moment(), target.random.uniform(3, 8), target.random.random() < 0.5
    target.cluster.name_server.kill()
    if start:
        target.fleet.launch(target.random.choice(RELAYS))
    time.sleep(away)
    target.cluster.name_server.restart()
    return f"name server, {moment}, {away:.2f} s{', a relay started meanwhile' if start else ''}"


def _with_work_under_way(target: Target) -> str:
    """Stops the only relay at a point and lets it go on in the moment of the crash."""
    point = target.random.choice(list(MOMENTS))
    role, other = target.random.sample(RELAYS, 2)
    target.fleet.kill(other)
    reached = stop_at(target, role, point)
    if not reached:
        return f"{point} not reached"
    if point == "relay.before_commit":
        target.network.hold_back(STALL)
        target.fleet.thaw(role)
        time.sleep(STALL / 5)
    else:
        target.fleet.thaw(role)
    return MOMENTS[point]


def _crash_broker(target: Target) -> None:
    target.broker.kill()
    target.broker.restart()


def _crash_database(target: Target) -> float:
    away = target.random.uniform(0, 2)
    target.database.kill()
    time.sleep(away)
    target.database.restart()
    target.fleet.database.engine.dispose()  # our own connections died with it
    return away
