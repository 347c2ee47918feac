"""``python -m tests.crash --faults N --rows M --seed S --database postgresql|mariadb``.

Prints a line for each fault and a JSON object as the last line; exit code 1 if a promise was broken. Without
``--database`` both get half of the faults and rows each, one after the other, and their figures are added up.
"""

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from functools import partial

from tests.crash.audit import Audit
from tests.crash.campaign import SERVERS, Plan, Struck, run


def main(arguments: list[str]) -> int:
    """The exit code: 0 if every promise was kept."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started, as an interrupt does
    audits = [_campaign(plan) for plan in _plans(arguments)]
    total = Audit(*map(sum, zip(*(asdict(audit).values() for audit in audits), strict=True)))
    sys.stdout.write(json.dumps(asdict(total)) + "\n")
    return 0 if total.clean else 1


def _plans(arguments: list[str]) -> list[Plan]:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Random faults, then an audit.")
    parser.add_argument("--faults", type=int, default=200, help="how many in all [200]")
    parser.add_argument("--rows", type=int, default=50_000, help="orders to write in all, a tenth rolled back [50000]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="deals the faults [by the clock]")
    parser.add_argument("--database", choices=list(SERVERS), help="only on this one [both, half each]")
    given = parser.parse_args(arguments)
    names = [given.database] if given.database else list(SERVERS)
    return [Plan(name, -(-given.faults // len(names)), -(-given.rows // len(names)), given.seed) for name in names]


def _campaign(plan: Plan) -> Audit:
    sys.stdout.write(f"{plan.database}: {plan.faults} faults over {plan.rows} rows\n")
    sys.stdout.write(f"{'seed':>8}  {'no':>4}  {'seconds':>7}  {'fault':<26}moment\n")
    audit = run(plan, partial(_tell, plan.seed, time.monotonic()))
    sys.stdout.write(f"{asdict(audit)}\n")
    return audit


def _tell(seed: int, started: float, struck: Struck) -> None:
    seconds = time.monotonic() - started
    sys.stdout.write(f"{seed:>8}  {struck.number:>4}  {seconds:>7.1f}  {struck.fault:<26}{struck.moment}\n")
    sys.stdout.writelines(f"{last_words}\n" for last_words in struck.fallen)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
