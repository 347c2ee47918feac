"""A claim of 100 rows before a million pending ones, on PostgreSQL and MariaDB, as the server sees it.

    python -m benchmarks.claim [--rows 1000000] [--claims 50] [--databases postgres mariadb]

Cases: no lanes, with the statistics of an empty table (``stale``) and with fresh ones; every lane blocked, with free
rows younger than all of theirs; one blocked lane with a tenth of the rows, the oldest, whose followers are parked, or
are met by these claims (``first met``: each claim parks them as it goes).

Server-side: PostgreSQL's ``EXPLAIN ANALYZE`` of each statement of the claim (planning and execution, undone before the
statement itself runs), MariaDB's profile of each. The last line is one JSON object: ``median_ms`` of the server,
``least_ms`` (nearer to what it is without other work beside it) and ``whole_ms`` of the call as its caller sees it
(with its round trips and its COMMIT), each with an entry for each database and case.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from benchmarks.backlog import Backlog, analyze, filled, flush, servers
from outbox.clock import monotonic
from outbox.store.claims import Claims
from outbox.store.database import Database

#: Rows of a claim.
LIMIT = 100
DATABASES = ("postgres", "mariadb")
_STATEMENTS = ("SELECT", "WITH", "UPDATE", "INSERT")


@dataclass(slots=True)
class Watch:
    """What the server says of the statements of one claim."""

    milliseconds: float = 0.0
    statements: int = 0
    _seen: int = field(default=0)

    def explain(self, connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        """Runs the statement under EXPLAIN ANALYZE and undoes it (PostgreSQL)."""
        if not statement.startswith(_STATEMENTS) or "set_config" in statement:
            return
        cursor = connection.connection.cursor()
        cursor.execute("SAVEPOINT measured")
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + statement, parameters)
        ((found,),) = cursor.fetchall()
        cursor.execute("ROLLBACK TO SAVEPOINT measured")
        self.milliseconds += found[0]["Planning Time"] + found[0]["Execution Time"]
        self.statements += 1

    def read_profiles(self, database: Database) -> None:
        """Adds up what the session's profile holds since the last look (MariaDB)."""
        with database.engine.connect() as connection:
            for number, seconds, statement in connection.exec_driver_sql("SHOW PROFILES").all():
                if number > self._seen and statement.startswith(_STATEMENTS):
                    self.milliseconds += 1000 * float(seconds)
                    self.statements += 1
                self._seen = max(self._seen, number)


@contextmanager
def watched(database: Database) -> Iterator[Watch]:
    """What the server says of the statements of the block."""
    watch = Watch()
    if database.dialect == "postgresql":
        event.listen(database.engine, "before_cursor_execute", watch.explain)
        yield watch
        event.remove(database.engine, "before_cursor_execute", watch.explain)
        return
    with database.engine.connect() as connection:  # the pool's only one
        connection.exec_driver_sql("SET profiling = 1, profiling_history_size = 100")
    watch.read_profiles(database)
    watch.milliseconds, watch.statements = 0.0, 0  # of those before
    yield watch
    watch.read_profiles(database)


@dataclass(slots=True)
class Case:
    """The claims of one case on one database."""

    server: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    rows: int = 0
    statements: int = 0


def measured(database: Database, claims: int) -> Case:
    """Claims again and again: each takes other rows, and leaves dead entries in the index for the next."""
    case, claim = Case(), Claims(database)
    claim.claim(1, 1 << 24, lease=3600)
    for _ in range(claims):
        with watched(database) as watch:
            taken = len(claim.claim(LIMIT, 1 << 24, lease=3600))
        began = monotonic()
        taken += len(claim.claim(LIMIT, 1 << 24, lease=3600))
        case.whole.append(1000 * (monotonic() - began))
        case.server.append(watch.milliseconds)
        case.rows += taken
        case.statements += watch.statements
    return case


def cases(rows: int) -> dict[str, list[Backlog]]:
    """Backlogs by the name of their case."""
    tenth = rows // 10
    plain, free = Backlog("plain", rows), Backlog("free", rows // 20)
    rest = Backlog("rest", rows - tenth)
    return {
        "no_lanes_stale": [plain],
        "no_lanes": [plain],
        "every_lane_blocked": [Backlog("blocked", rows, lanes=rows // 100), free],
        "one_lane_blocked": [Backlog("lane", tenth, lanes=1), rest],
        "one_lane_first_met": [Backlog("lane", tenth, lanes=1, parked=False), rest],
    }


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="A claim before a large backlog")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--claims", type=int, default=50)
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=DATABASES)
    given = parser.parse_args()
    found: dict[str, Case] = {}
    print(f"{'database and case':<32} {'median ms':>10} {'worst ms':>9} {'whole ms':>9} {'rows':>6} {'statements':>11}")
    with servers(given.databases) as urls:
        for server, url in urls.items():
            for name, backlogs in cases(given.rows).items():
                with filled(url, backlogs) as database:
                    if not name.endswith("stale"):
                        analyze(database)
                    flush(database)
                    case = found[f"{server}_{name}"] = measured(database, given.claims)
                median, whole = statistics.median(case.server), statistics.median(case.whole)
                print(
                    f"{server + ' ' + name:<32} {median:>10.2f} {max(case.server):>9.2f} {whole:>9.2f} "
                    f"{case.rows / given.claims / 2:>6.0f} {case.statements / given.claims:>11.1f}",
                    flush=True,
                )
    medians = {
        "median_ms": {name: round(statistics.median(case.server), 2) for name, case in found.items()},
        "least_ms": {name: round(min(case.server), 2) for name, case in found.items()},
        "whole_ms": {name: round(statistics.median(case.whole), 2) for name, case in found.items()},
    }
    print(json.dumps({"benchmark": "claim", "rows": given.rows, "limit": LIMIT, **medians}))


if __name__ == "__main__":
    main()
