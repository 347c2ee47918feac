"""One campaign: batches of orders, one fault into each, then everything drains and is audited."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from outbox import migrate
from outbox.store.database import Database
from tests.acceptance.conftest import rocketmq_stack
from tests.crash.audit import Audit, audited
from tests.crash.cluster import Cluster
from tests.crash.faults import FAULTS, Target, dealt
from tests.crash.fleet import Fleet
from tests.services.databases import fresh_database
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.server import Server

SERVERS: Final[dict[str, Callable[[], Server]]] = {"postgresql": Postgres, "mariadb": MariaDB}
#: Seconds within which everything must be visible after the last fault. Generous: the machine may be busy.
DRAINED: Final = 180.0
#: Seconds for which the topic is watched after that: a copy too many would come with a late check or commit.
WATCHED: Final = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign does; the same seed deals the same faults."""

    database: str
    faults: int
    rows: int
    seed: int


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault as it happened."""

    number: int
    fault: str
    moment: str
    #: Processes that ended by themselves meanwhile, with their last words.
    fallen: list[str]


def run(plan: Plan, told: Callable[[Struck], None]) -> Audit:
    """Runs the campaign; ``told`` hears of each fault once it has struck."""
    with SERVERS[plan.database]() as database, Cluster() as cluster, _fleet(database, cluster) as fleet:
        target = Target(fleet, database, cluster.broker, Random(plan.seed))
        fleet.revive()
        for struck in _attack(plan, target):
            told(struck)
        _drain(fleet)
        return audited(fleet, plan.faults, plan.rows)


def _attack(plan: Plan, target: Target) -> Iterator[Struck]:
    ends = [plan.rows * number // plan.faults for number in range(plan.faults + 1)]
    for number, fault in enumerate(islice(dealt(target.random), plan.faults)):
        fleet, known = target.fleet, len(target.fleet.fallen)
        fleet.write(ends[number] + 1, ends[number + 1])
        moment = FAULTS[fault](target)
        fleet.revive()
        fleet.finish_batch(DRAINED)
        yield Struck(number + 1, fault, moment, fleet.fallen[known:])


def _drain(fleet: Fleet) -> None:
    """Waits until nothing is owed, and then for what should not come."""
    fleet.wait("every row to be delivered", fleet.finished, DRAINED)
    fleet.wait("every effect", lambda: len(fleet.effects()) >= len(fleet.committed()), DRAINED)
    time.sleep(WATCHED)
    fleet.revive()


@contextmanager
def _fleet(database: Server, cluster: Cluster) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="outbox-crash-") as folder, fresh_database(database.url) as url:
        migrated = Database(url)
        migrate.upgrade(migrated)
        migrated.close()
        fleet = Fleet(Path(folder), url, *rocketmq_stack(cluster.namesrv))
        try:
            yield fleet
        finally:
            fleet.stop()
