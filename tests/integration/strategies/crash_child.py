"""A process of many consumers that tests stop at a point and kill: ``python -m …crash_child PLAN``, PLAN being JSON.

It says ``ready``, waits for a line, and consumes the topic payments of an embedded broker with every strategy of the
plan, each as a group of its own, until it is killed.
"""

import json
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Final, Self

from outbox.brokers.embedded import BrokerTiming, EmbeddedSource
from outbox.consumer import Runner, RunnerSettings
from outbox.store.database import Database
from tests.integration.strategies.crash_points import Point, Striker, StruckSource, strike_databases
from tests.integration.strategies.rig import RIGS, Surroundings

#: Seconds; more than a machine stands still. A dead owner's message comes again after the one, its key is free after
#: the other.
INVISIBLE: Final = 12.0
LEASE: Final = 9.0
TIMING: Final = BrokerTiming(poll_interval=0.1)
SETTINGS: Final = RunnerSettings(
    threads=1, invisible=INVISIBLE, retry_delays=(0.2,) * 100, receive_wait=0.5, outage_rest=0.2, outage_rest_most=0.2
)


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer: a strategy over one database; its name is also its group's."""

    name: str
    strategy: str
    database: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process is to do."""

    point: str
    broker: str
    redis: str
    scope: str
    members: tuple[Member, ...]
    #: Seconds.
    lease: float = LEASE

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """What ``text`` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "members": tuple(Member(**member) for member in fields["members"])})


_saying = threading.Lock()


def say(text: str) -> None:
    """One line, whole."""
    with _saying:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def surroundings(member: Member, plan: Plan) -> Surroundings:
    """Each consumer has connections of its own."""
    database = Database(member.database, statement_timeout=60, pool_size=4)
    return Surroundings(database.engine, lambda: plan.redis, plan.scope, plan.lease)


def consume(member: Member, plan: Plan, striker: Striker) -> None:
    """Until the process is killed."""
    rig = RIGS[member.strategy](surroundings(member, plan))
    source = EmbeddedSource(plan.broker, member.name, ["payments"], invisible=INVISIBLE, settings=TIMING)
    Runner(StruckSource(source, member.name, striker), rig.consumer(name=member.name), SETTINGS).run(threading.Event())


def crash(plan: Plan) -> None:
    """One thread for each consumer."""
    striker = Striker(Point(plan.point), say)
    strike_databases(striker, [member.name for member in plan.members])
    say("ready")
    sys.stdin.readline()
    for member in plan.members:
        threading.Thread(target=consume, args=(member, plan, striker)).start()


if __name__ == "__main__":
    crash(Plan.parse(sys.argv[1]))
