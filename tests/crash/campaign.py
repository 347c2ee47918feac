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
from tests.acceptance.deployment import Seen
from tests.crash.audit import Audit, audited
from tests.crash.cluster import Cluster
from tests.crash.faults import FAULTS, dealt
from tests.crash.fleet import Fleet
from tests.crash.target import Target
from tests.crash.transports import TRANSPORTS
from tests.services.databases import fresh_database
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.server import Server

SERVERS: Final[dict[str, Callable[[], Server]]] = {"postgresql": Postgres, "mariadb": MariaDB}
#: Seconds within which everything must be visible after the last fault. Generous: the machine may be busy.
DRAINED: Final = 600.0
#: Seconds for which the topic is watched after that: a copy too many would come with a late check or commit.
WATCHED: Final = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign does; the same seed deals the same faults, each with the same dice."""

    database: str
    faults: int
    rows: int
    seed: int
    transport: str = "remoting"
    #: Faults of the seed before this one are left out, with their rows.
    first: int = 1
    #: Only faults whose names contain this.
    only: str = ""

    def dealt(self) -> Iterator[tuple[int, str, Random]]:
        """Number, name and dice of each fault."""
        names = (name for name in dealt(self.seed) if self.only in name)
        for number, name in enumerate(islice(names, self.faults), 1):
            if number >= self.first:
                yield number, name, Random(f"{self.seed}/{number}")

    def batch(self, number: int) -> tuple[int, int]:
        """The first and the last order that are written while this fault strikes."""
        return self.rows * (number - 1) // self.faults + 1, self.rows * number // self.faults


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
    with deployed(plan.database, plan.transport) as (database, cluster, fleet):
        fleet.revive()
        for number, fault, dice in plan.dealt():
            told(_strike(Target(fleet, database, cluster, dice), number, fault, plan.batch(number)))
        drain(fleet)
        written = range(plan.batch(plan.first)[0], plan.rows + 1)
        excused = 0 if TRANSPORTS[plan.transport].exact else len(written)
        return audited(fleet, plan.faults - plan.first + 1, written, excused)


def _strike(target: Target, number: int, fault: str, batch: tuple[int, int]) -> Struck:
    fleet, known = target.fleet, len(target.fleet.fallen)
    fleet.write(*batch)
    moment = FAULTS[fault](target)
    fleet.revive()
    fleet.finish_batch(DRAINED)
    return Struck(number, fault, moment, fleet.fallen[known:])


def drain(fleet: Fleet) -> None:
    """Waits until nothing is owed, and then for what should not come."""
    fleet.wait("every row to be delivered", fleet.finished, DRAINED)
    fleet.wait("every effect", lambda: len(fleet.effects()) >= len(fleet.committed()), DRAINED)
    time.sleep(WATCHED)
    fleet.revive()


@contextmanager
def deployed(database: str, transport: str = "remoting") -> Iterator[tuple[Server, Cluster, Fleet]]:
    """A database and a cluster of its own for a fleet that is not started yet."""
    shipped = TRANSPORTS[transport]
    with (
        SERVERS[database]() as server,
        Cluster(**shipped.broker) as cluster,
        tempfile.TemporaryDirectory(prefix="outbox-crash-") as folder,
        fresh_database(server.url) as url,
    ):
        stack = rocketmq_stack(cluster.namesrv, shipped.message_type)
        with fleet_on(Path(folder), url, *stack) as fleet:
            fleet.ship_through(shipped.url(cluster), shipped.settings())
            yield server, cluster, fleet


@contextmanager
def fleet_on(
    folder: Path, database_url: str, broker_url: str, topic: str, visible: Callable[[], list[Seen]]
) -> Iterator[Fleet]:
    """A fleet on a database that is migrated for it; whatever it started ends with it."""
    database = Database(database_url)
    migrate.upgrade(database)
    database.close()
    fleet = Fleet(folder, database_url, broker_url, topic, visible)
    try:
        yield fleet
    finally:
        fleet.stop()
