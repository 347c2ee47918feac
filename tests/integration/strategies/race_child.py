"""A process that races others for keys: ``python -m tests.integration.strategies.race_child PLAN KEY,KEY``.

For each consumer of the plan in turn it says ``ready``, waits for a line, takes the keys in order, and prints the
outcome of each.
"""

import sys

from tests.integration.strategies.crash_child import Plan, say, surroundings
from tests.integration.strategies.rig import RIGS
from tests.unit.consumer.fakes import delivery


def race(plan: Plan, keys: list[str]) -> None:
    """All strategies of the plan."""
    for member in plan.members:
        consumer = RIGS[member.strategy](surroundings(member, plan)).consumer(name=member.name)
        say("ready")
        sys.stdin.readline()
        for key in keys:
            say(type(consumer.process(delivery(keys=(key,), body=key.encode()))).__name__)
        consumer.close()


if __name__ == "__main__":
    race(Plan.parse(sys.argv[1]), sys.argv[2].split(","))
