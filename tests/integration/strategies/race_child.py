"""A process that meets others at a key: ``python -m tests.integration.strategies.race_child race|hold PLAN KEY,KEY``.

``race``: for each consumer of the plan in turn it says ``ready``, waits for a line, takes the keys in order, and prints
the outcome of each. ``hold``: all consumers of the plan take the first key, and stop inside their handlers, saying so.
"""

import sys
import threading

from outbox.consumer import Message
from tests.integration.strategies.crash_child import Member, Plan, say, surroundings
from tests.integration.strategies.rig import RIGS
from tests.unit.consumer.fakes import delivery


def race(plan: Plan, keys: list[str]) -> None:
    """One consumer after another."""
    for member in plan.members:
        consumer = RIGS[member.strategy](surroundings(member, plan)).consumer(name=member.name)
        say("ready")
        sys.stdin.readline()
        for key in keys:
            say(type(consumer.process(delivery(keys=(key,), body=key.encode()))).__name__)
        consumer.close()


def hold(plan: Plan, keys: list[str]) -> None:
    """Each consumer in a thread of its own; never ends."""
    for member in plan.members:
        threading.Thread(target=_hold, args=(member, plan, keys[0])).start()


def _hold(member: Member, plan: Plan, key: str) -> None:
    def stop(_: Message) -> None:
        say("here")
        threading.Event().wait()

    consumer = RIGS[member.strategy](surroundings(member, plan)).consumer(stop, name=member.name)
    consumer.process(delivery(keys=(key,), body=key.encode()))


if __name__ == "__main__":
    {"race": race, "hold": hold}[sys.argv[1]](Plan.parse(sys.argv[2]), sys.argv[3].split(","))
