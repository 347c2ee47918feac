"""Runs the tests, and those that fell once more, alone: ``python -m tests.suite PYTEST_ARGUMENTS...``.

Hundreds of tests wait for servers, processes and leases, on cores that all of them share; now and then one meets a
machine that stood still, and cannot tell that from a fault. A fault falls again; what passes alone is named at the end,
since it may be a race: look for it. Where more than ``MOST`` fell, none is run again.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

#: Of four thousand. More at once are no accident.
MOST: Final = 5
#: What pytest's cache provider writes down of each run.
_FALLEN: Final = Path(".pytest_cache/v/cache/lastfailed")


def run(arguments: Sequence[str]) -> int:
    """pytest's exit code; 0 where all that fell, and no more than ``MOST``, passed alone."""
    code = int(pytest.main(["--cache-clear", *arguments]))
    fallen = _fallen()
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(fallen) <= MOST:
        return code
    alone = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *fallen]
    again = subprocess.run(alone, check=False).returncode
    if again == 0:
        print("Fell beside other tests and passed alone; a race, or a machine that stood still:", *fallen, sep="\n  ")
    return again


def _fallen() -> list[str]:
    return sorted(json.loads(_FALLEN.read_text())) if _FALLEN.exists() else []


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
