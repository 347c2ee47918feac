"""The relay beside the bare exchange of its transport, and into transports that cost nothing or a given time.

    python -m benchmarks.relay [--rows 20000] [--rounds 3] [--only real,plain,noop,sqlite,slow,two]

``real``: each round takes the transport's own figure, then lets ``outbox relay`` (a process of its own, default
settings) ship the rows from a durable PostgreSQL to the same broker; ``plain``: the same with plain sends. The others
put a stand-in in the place of the transport (``benchmarks/stand_ins.py``). ``noop``: default settings, and 1,024 rows a
pass; ``sqlite``: a file; ``slow``: 5 ms a message, every other row in one of 64 lanes; ``two``: relays beside one where
a message takes 200 ms. The last line is one JSON object of medians; ``OUTBOX_TEST_ROCKETMQ`` and
``OUTBOX_TEST_POSTGRES_URL`` name running servers.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.ship import (
    add,
    add_to_lanes,
    claimed_twice,
    cpu_seconds,
    relay,
    release,
    server,
    shipped,
    stand_in,
    url_of,
)
from benchmarks.transport import Load, PlainLoad, cluster, windows
from outbox import migrate
from outbox.cli import garbage
from outbox.message import Mode
from outbox.store.database import Database
from tests.services.databases import migrated

#: Seconds for which the bare exchange runs before it is measured, and is measured.
SETTLE, MEASURE = 4.0, 5.0
TUNED = {"rows_per_pass": 1024}
BODY = os.urandom(512)
CASES = ("real", "plain", "noop", "sqlite", "slow", "two")
#: Who spends the CPU time of a row.
_SIDES = ("broker", "database", "transport", "relay")
#: Figures by name, one value a round.
Figures = dict[str, list[float]]


def bare(load: Load) -> tuple[float, float]:
    """The transport's own rate, and its CPU time a message, now."""
    load.start()
    try:
        time.sleep(SETTLE)
        ((rate, cpu),) = windows(load, 1, MEASURE)
    finally:
        load.stop()
    return rate, cpu


def beside_transport(maintenance: str, namesrv: str, rows: int, rounds: int, mode: Mode) -> Figures:
    """Rates of both sides, and who spent the CPU time of a row."""
    kind = Load if mode is Mode.TRANSACTIONAL else PlainLoad
    found: Figures = {name: [] for name in ("ratio", "per_s", "transport_per_s", *_SIDES)}
    with migrated(maintenance) as database, relay(url_of(database), namesrv) as process:
        add(database, rows, BODY, mode=mode)
        shipped(database, rows)
        for _ in range(rounds):
            transport, transport_cpu = bare(kind(namesrv, batches=2, batch=256, body=512))
            add(database, rows, BODY, hidden=True, mode=mode)
            before = (cpu_seconds("java"), cpu_seconds("postgres"), process.cpu())
            release(database)
            rate = shipped(database, rows)
            after = (cpu_seconds("java"), cpu_seconds("postgres"), process.cpu())
            broker, db, own = (1e6 * (end - start) / rows for start, end in zip(before, after, strict=True))
            values = (rate / transport, rate, transport, broker, db, transport_cpu, own - transport_cpu)
            for name, value in zip(found, values, strict=True):
                found[name].append(value)
    return found


def into_stand_in(database: Database, rows: int, rounds: int, seconds: float = 0.0, **settings: object) -> Figures:
    """Rates, and CPU time and statements a row; where a message takes ``seconds``, every other row is in a lane."""
    found: Figures = {"per_s": [], "cpu_us": [], "database_us": []}
    with stand_in(url_of(database), seconds, **settings) as process:
        add(database, rows // 4, BODY)
        shipped(database, rows // 4)
        for _ in range(rounds):
            if seconds:
                add_to_lanes(database, rows, BODY, 64)
            else:
                add(database, rows, BODY, hidden=True)
            before = process.cpu(), cpu_seconds("postgres")
            release(database)
            found["per_s"].append(shipped(database, rows))
            after = process.cpu(), cpu_seconds("postgres")
            own, db = (1e6 * (end - start) / rows for start, end in zip(before, after, strict=True))
            found["cpu_us"].append(own)
            found["database_us"].append(db)
    found["statements"] = [process.statements / (rows * rounds + rows // 4)]
    return found


def two_relays(database: Database, rows: int) -> tuple[float, int]:
    """How much faster two are than one where the transport is what limits; and the rows that were claimed twice."""
    rates = []
    for relays in (1, 2):
        add(database, rows, BODY, hidden=True)
        with ExitStack() as stack:
            for _ in range(relays):
                stack.enter_context(stand_in(url_of(database), 0.2))
            time.sleep(2)  # both have started
            release(database)
            rates.append(shipped(database, rows))
    return rates[1] / rates[0], claimed_twice(database)


@contextmanager
def sqlite_file() -> Iterator[Database]:
    """The same in a file."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/outbox.db", statement_timeout=120)
        migrate.upgrade(database)
        yield database
        database.close()


def main() -> None:
    """Runs the cases and prints their figures."""
    parser = argparse.ArgumentParser(description="The relay against the bare exchange of its transport")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(CASES))
    options = parser.parse_args()
    chosen = options.only.split(",")
    result: dict[str, object] = {"benchmark": "relay"}
    garbage.seldom()  # as in the relay's own process, or the bare exchange would be slower by that
    with server() as maintenance:
        if {"real", "plain"} & set(chosen):
            with cluster() as namesrv:
                result |= _real(chosen, maintenance, namesrv, options.rows, options.rounds)
        for name, measure in _stand_ins(maintenance, options.rows, options.rounds).items():
            if name in chosen:
                result |= measure()
    print(json.dumps(result))


def _real(chosen: list[str], maintenance: str, namesrv: str, rows: int, rounds: int) -> dict[str, object]:
    result: dict[str, object] = {}
    if "real" in chosen:
        found = told("real", beside_transport(maintenance, namesrv, rows, rounds, Mode.TRANSACTIONAL))
        result["ratio"] = round(found["ratio"], 3)
        result |= {name: round(found[name]) for name in ("per_s", "transport_per_s")}
        result["cpu_us"] = {side: round(found[side]) for side in _SIDES}
    if "plain" in chosen:
        found = told("plain", beside_transport(maintenance, namesrv, rows, rounds, Mode.PLAIN))
        result |= {"plain_ratio": round(found["ratio"], 3), "plain_per_s": round(found["per_s"])}
    return result


def _stand_ins(maintenance: str, rows: int, rounds: int) -> dict[str, Callable[[], dict[str, object]]]:
    def noop() -> dict[str, object]:
        with migrated(maintenance) as database:
            default = told("noop", into_stand_in(database, rows, rounds))
        with migrated(maintenance) as database:
            tuned = told("noop, tuned", into_stand_in(database, rows, rounds, **TUNED))
        rates = {"noop_default_per_s": round(default["per_s"]), "noop_tuned_per_s": round(tuned["per_s"])}
        return {**rates, "statements_per_row": round(default["statements"], 4)}

    def sqlite() -> dict[str, object]:
        with sqlite_file() as database:
            return {"sqlite_per_s": round(told("sqlite", into_stand_in(database, rows, rounds))["per_s"])}

    def slow() -> dict[str, object]:
        with migrated(maintenance) as database:
            return {"at_5ms_per_s": round(told("slow", into_stand_in(database, rows // 4, rounds, 0.005))["per_s"])}

    def two() -> dict[str, object]:
        with migrated(maintenance) as database:
            ratio, twice = two_relays(database, rows // 2)
        return {"two_relays": round(ratio, 2), "claimed_twice": twice}

    return {"noop": noop, "sqlite": sqlite, "slow": slow, "two": two}


def told(case: str, figures: Figures) -> dict[str, float]:
    """The medians; prints all rounds."""
    for name, values in figures.items():
        print(f"{case:>12} {name:>16}", *(f"{value:>10.{0 if value > 10 else 3}f}" for value in values))
    return {name: statistics.median(values) for name, values in figures.items()}


if __name__ == "__main__":
    main()
