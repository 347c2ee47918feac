"""The relay beside other outbox libraries for Python, on one PostgreSQL, into publishers that cost nothing or 5 ms.

    python -m benchmarks.peers --python /path/to/python3.13 [--rows 5000] [--rounds 3]

``--python`` names an interpreter that has the group ``peers`` (they need Python 3.13; ours runs in this one). A peer
that is not installed there, or fails, is named in ``not_run`` with its last word. In turns on one server, each in a
fresh database, from the moment at which the rows are there. Ours writes each row three times (claim, decision,
confirmation), and is exactly once at the broker for it; the others claim it and delete or mark it. The last line is one
JSON object of medians, rows a second.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa

from benchmarks.relay import BODY, TUNED
from benchmarks.ship import add, release, server, shipped, stand_in, url_of
from outbox.schema import outbox
from tests.integration.relays import now
from tests.services.databases import fresh_database, migrated

NAMES = ("faststream-outbox", "txoutbox", "omni-box")
CLIENT = Path(__file__).parent / "clients" / "peer.py"
#: Seconds a message takes, by the name of the case; and the settings.
CASES = {"noop_default": (0.0, False), "noop_tuned": (0.0, True), "at_5ms": (0.005, False)}
#: Seconds for one run of a peer.
TIMEOUT = 300


def ours(maintenance: str, rows: int, seconds: float, *, tuned: bool) -> float:
    """Rows a second of this relay."""
    settings = TUNED if tuned else {}
    with migrated(maintenance) as database, stand_in(url_of(database), seconds, **settings):
        add(database, rows // 4, BODY)
        shipped(database, rows // 4)
        add(database, rows, BODY, hidden=True)
        release(database)
        began = now(database)
        shipped(database, rows)
        with database.look() as connection:
            end = connection.execute(sa.select(sa.func.max(outbox.c.delivered_at))).scalar_one()
        return float(rows / (end - began).total_seconds())


def peer(name: str, python: str, maintenance: str, rows: int, seconds: float, *, tuned: bool) -> float:
    """Rows a second of a peer; ``CalledProcessError`` or ``TimeoutExpired`` where it does not run."""
    with fresh_database(maintenance) as url:
        plain = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        words = [python, str(CLIENT), name, plain, str(rows), str(seconds), *(["--tuned"] if tuned else [])]
        ran = subprocess.run(words, capture_output=True, text=True, check=True, timeout=TIMEOUT)
        return float(json.loads(ran.stdout.splitlines()[-1])["per_s"])


def why(error: subprocess.SubprocessError) -> str:
    """The last word of a peer that does not run."""
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    return said.strip().splitlines()[-1] if said else type(error).__name__


def main() -> None:
    """Runs all in turns and prints their figures."""
    parser = argparse.ArgumentParser(description="The relay beside other outbox libraries")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    missing: dict[str, str] = {}
    with server() as maintenance:
        for case, (seconds, tuned) in CASES.items():
            for _ in range(options.rounds):
                found.setdefault("ours", {}).setdefault(case, []).append(
                    ours(maintenance, options.rows, seconds, tuned=tuned)
                )
                for name in NAMES:
                    run = f"{name} {case}"
                    if name in missing or run in missing:
                        continue
                    try:
                        rate = peer(name, options.python, maintenance, options.rows, seconds, tuned=tuned)
                    except subprocess.SubprocessError as error:
                        missing[run] = why(error)
                        continue
                    found.setdefault(name, {}).setdefault(case, []).append(rate)
    report(found, missing)


def report(found: dict[str, dict[str, list[float]]], missing: dict[str, str]) -> None:
    """The table and the figures."""
    medians = {
        side: {case: round(statistics.median(rates)) for case, rates in cases.items()} for side, cases in found.items()
    }
    print(f"{'':>20}", *(f"{case:>14}" for case in CASES))
    for side, cases in medians.items():
        print(f"{side:>20}", *(f"{cases.get(case, '-'):>14}" for case in CASES))
    print(json.dumps({"benchmark": "peers", **medians, "not_run": missing}))


if __name__ == "__main__":
    main()
