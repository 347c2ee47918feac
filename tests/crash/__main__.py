"""``python -m tests.crash --faults N --rows M --seed S --database postgresql|mariadb``.

Tells of each fault on standard error as it strikes; prints the table of all and, as the last line, a JSON object of
the audit's figures. Exit code 1 if a promise was broken. Without ``--database`` both get half of the faults and rows
each, one after the other, and their figures are added up.

A failure is repeated with the seed, the database, the faults and the rows of its run, and ``--first`` the number of
the fault before which it was still clean. ``--boundary late-commit|pause`` goes beyond what the guarantee assumes: see
``docs/guarantees.md``.
"""

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from tests.crash import boundary
from tests.crash.audit import Audit
from tests.crash.campaign import DRAINED, SERVERS, Plan, Struck, run
from tests.crash.transports import TRANSPORTS

_HEADING = f"{'database':<11}{'seed':>8}  {'no':>4}  {'seconds':>7}  {'fault':<28}moment"


def main(arguments: list[str]) -> int:
    """The exit code: 0 if every promise was kept."""
    logging.basicConfig(level=logging.ERROR)  # what connections say to a broker that comes up is no news
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started, as an interrupt does
    given = _parser().parse_args(arguments)
    names = [given.database] if given.database else list(SERVERS)
    table = [_HEADING]
    audits = [_run(given, name, len(names), table) for name in names]
    total = Audit(*map(sum, zip(*(asdict(audit).values() for audit in audits), strict=True)))
    sys.stdout.write("".join(f"{line}\n" for line in table) if not given.boundary else "")
    sys.stdout.writelines(f"{name}: {asdict(audit)}\n" for name, audit in zip(names, audits, strict=True))
    sys.stdout.write(json.dumps(asdict(total)) + "\n")
    return 0 if all(audit.clean for audit in audits) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Random faults, then an audit.")
    parser.add_argument("--faults", type=int, default=200, help="how many in all [200]; of a boundary [10]")
    parser.add_argument("--rows", type=int, default=50_000, help="orders to write in all, a tenth rolled back [50000]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="deals the faults [by the clock]")
    parser.add_argument("--first", type=int, default=1, help="begin with this fault of the seed, on each database [1]")
    parser.add_argument("--only", default="", metavar="WORD", help="only faults whose names contain this")
    parser.add_argument("--database", choices=list(SERVERS), help="only on this one [both, half each]")
    parser.add_argument("--transport", choices=list(TRANSPORTS), default="remoting", help="of the relays [remoting]")
    parser.add_argument("--boundary", choices=list(boundary.BOUNDARIES), help="inject this instead of random faults")
    return parser


def _run(given: argparse.Namespace, database: str, share: int, table: list[str]) -> Audit:
    if given.boundary:
        return boundary.run(given.boundary, database, min(given.faults, 10), _note)
    faults, rows = -(-given.faults // share), -(-given.rows // share)
    plan = Plan(database, faults, rows, given.seed, given.transport, given.first, given.only)
    _note(f"{database}: {faults} faults over {rows} rows, then {DRAINED:.0f} s at most for the rest\n{_HEADING}")
    return run(plan, partial(_tell, plan, time.monotonic(), table))


def _tell(plan: Plan, started: float, table: list[str], struck: Struck) -> None:
    seconds = time.monotonic() - started
    line = f"{plan.database:<11}{plan.seed:>8}  {struck.number:>4}  {seconds:>7.1f}  {struck.fault:<28}{struck.moment}"
    told: Sequence[str] = [line, *struck.fallen]
    table += told
    for each in told:
        _note(each)


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
