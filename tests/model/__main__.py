"""``python -m tests.model``: explores the wide bounds and prints states, depth and time; 1 if a property is broken.

Arguments choose ranges by a part of their names; ``--small`` chooses the ones of the tests.
"""

import resource
import sys
import time

from tests.model.explore import explore
from tests.model.ranges import SMALL, WIDE, Range


def main(arguments: list[str]) -> int:
    """The exit code: 0 if every property holds everywhere."""
    names = [argument for argument in arguments if argument != "--small"]
    ranges = SMALL if "--small" in arguments else WIDE
    chosen = {name: it for name, it in ranges.items() if not names or any(part in name for part in names)}
    held = [_explored(name, it) for name, it in chosen.items()]
    if not held:
        sys.stderr.write(f"no such range; the names are: {'; '.join(ranges)}\n")
        return 2
    return 0 if all(held) else 1


def _explored(name: str, it: Range) -> bool:
    started = time.perf_counter()
    report = explore(it.bounds, check_ends=it.ends)
    seconds = time.perf_counter() - started
    ends = ", ".join(f"{count:,} {state}" for state, count in sorted(report.ends.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
    sys.stdout.write(
        f"{name}: {report.states:,} states, {report.steps:,} steps, depth {report.depth}, "
        f"{seconds:.1f} s, peak {peak:.1f} GiB; ended: {ends}\n"
    )
    if report.counterexample is not None:
        sys.stdout.write(f"{report.counterexample}\n")
    sys.stdout.flush()
    return report.counterexample is None and report.states >= it.states


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
