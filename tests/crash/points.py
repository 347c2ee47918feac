"""Faults at named points of ``outbox.faults``: a process dies or stops exactly there."""

import time
from collections.abc import Sequence
from typing import Final

from tests.crash.fleet import CHECKBACKS, LEASES_OVER, RELAYS
from tests.crash.target import REACHED, Target

#: What a relay comes by on the way of a row; the second only with more rows than its window holds at first.
PASS_POINTS: Final = (
    "relay.after_claim",
    "sending.between_chunks",
    "relay.before_decide",
    "relay.during_decide",
    "relay.after_decide",
    "relay.before_commit",
    "commits.after_write",
    "relay.before_settle",
)
#: Where a relay leaves decided rows behind that are not delivered, or not known to be.
DECIDED_POINTS: Final = PASS_POINTS[4:]
RECONCILER_POINTS: Final = ("commits.before_write", "commits.after_write")
CHECKBACK_POINTS: Final = ("checkback.after_hold", "checkback.before_answer", "commits.after_write")
PRODUCER_POINTS: Final = ("producer.before_commit", "producer.after_commit")
CONSUMER_POINTS: Final = ("consumer.after_receive", "consumer.in_handler", "consumer.before_acknowledge")


def kill_relay_at_point(target: Target) -> str:
    """Both relays die at the same point, so that one of them is sure to meet it."""
    point = target.random.choice(PASS_POINTS)
    times = 1 if point == "sending.between_chunks" else target.random.randint(1, 2)
    reached = _die_at(target, RELAYS, f"{point}@{times}")
    return f"relays, {point}@{times}{_or_killed(reached)}"


def freeze_relay_at_point(target: Target) -> str:
    """A relay stops at a point, and goes on once its leases are over and others have done its work."""
    point = target.random.choice(PASS_POINTS)
    role, other = target.random.sample(RELAYS, 2)
    target.fleet.kill(other)
    reached = stop_at(target, role, point)
    target.fleet.launch(other)
    if not reached:
        return f"{role}, {point}{_or_killed(reached)}"
    time.sleep(LEASES_OVER)
    target.fleet.thaw(role)
    return f"{role}, {point}, {LEASES_OVER:.0f} s"


def kill_reconciler_at_point(target: Target) -> str:
    """The relays die with decided rows in hand; the one that takes them over, unhelped, dies on the way as well."""
    before, point = target.random.choice(DECIDED_POINTS), target.random.choice(RECONCILER_POINTS)
    _die_at(target, RELAYS, before)
    for role in CHECKBACKS:
        target.fleet.kill(role)
    role = target.random.choice(RELAYS)
    reached = _die_at(target, (role,), point, "--no-checkback")
    return f"{role}, {point} after {before}{_or_killed(reached)}"


def kill_check_back_at_point(target: Target) -> str:
    """The relays die with halves in hand, and the only process that is asked about them dies as well."""
    before, point = target.random.choice(PASS_POINTS[2:6]), target.random.choice(CHECKBACK_POINTS)
    first, second = target.random.sample(CHECKBACKS, 2)
    _die_at(target, RELAYS, before)
    target.fleet.kill(second)
    reached = _die_at(target, (first,), point)
    return f"{first}, {point} after {before}{_or_killed(reached)}"


def freeze_check_back_at_point(target: Target) -> str:
    """The same, but it stops, and goes on once its lease is over and another one was asked."""
    before, point = target.random.choice(PASS_POINTS[2:6]), target.random.choice(CHECKBACK_POINTS)
    first, second = target.random.sample(CHECKBACKS, 2)
    _die_at(target, RELAYS, before)
    target.fleet.kill(second)
    reached = stop_at(target, first, point)
    target.fleet.launch(second)
    if reached:
        time.sleep(LEASES_OVER)
        target.fleet.thaw(first)
    return f"{first}, {point} after {before}{_or_killed(reached)}"


def kill_producer_at_point(target: Target) -> str:
    """Dies before or after the COMMIT of a business transaction."""
    point = f"{target.random.choice(PRODUCER_POINTS)}@{target.random.randint(1, 50)}"
    target.fleet.rearm_producer(f"{point}=kill")
    reached = target.fleet.comes_to(target.fleet.producer_ended, REACHED)
    return f"producer, {point}{'' if reached else ', not reached'}"


def kill_consumer_at_point(target: Target) -> str:
    """Dies with messages that it received, within a handler, or between its effect and the acknowledgement."""
    point = f"{target.random.choice(CONSUMER_POINTS)}@{target.random.randint(1, 5)}"
    reached = _die_at(target, ("consumer",), point)
    return f"consumer, {point}{_or_killed(reached)}"


def stop_at(target: Target, role: str, point: str, *arguments: str) -> bool:
    """Starts the role and waits until it is stopped at the point; False: it never came by, and was killed."""
    target.fleet.launch(role, *arguments, fault=f"{point}=pause")
    if target.fleet.comes_to(lambda: target.fleet.frozen(role), LEASES_OVER + REACHED):
        return True
    target.fleet.kill(role)  # or it would stop at that point later, for good
    return False


def _die_at(target: Target, roles: Sequence[str], point: str, *arguments: str) -> bool:
    """Starts the roles and waits until one is dead at the point; all are dead afterwards."""
    for role in roles:
        target.fleet.launch(role, *arguments, fault=f"{point}=kill")
    reached = target.fleet.comes_to(lambda: any(map(target.fleet.dead, roles)), LEASES_OVER + REACHED)
    for role in roles:
        target.fleet.kill(role)
    return reached


def _or_killed(reached: bool) -> str:
    return "" if reached else ", not reached: killed instead"
