"""Processes whose wall clock is wrong by an hour."""

import os
from pathlib import Path
from typing import Final

from tests.crash.fleet import CHECKBACKS, RELAYS
from tests.crash.points import PASS_POINTS
from tests.crash.target import Target
from tests.services.errors import ServiceMissing

_HOUR: Final = 3600
#: In the folder of Debian's libraries, whose name is that of the processor.
_LIBRARY: Final = "*/datefudge/datefudge.so"


def shift_clock(target: Target) -> str:
    """A process starts with its wall clock an hour ahead or behind and keeps it; half of the relays soon die with it.

    Only the born time of halves and messages is then wrong for all others.
    """
    if not (library := datefudge()):
        return "nothing: datefudge is not installed"
    role = target.random.choice((*RELAYS, *CHECKBACKS, "consumer"))
    shift = target.random.choice((_HOUR, -_HOUR))
    point = target.random.choice(PASS_POINTS) if role in RELAYS and target.random.random() < 0.5 else ""
    target.fleet.launch(role, fault=f"{point}@2=kill" if point else "", **shifted(library, shift))
    target.random_moment()
    return f"{role}, {shift:+d} s{f', dies at {point}' if point else ''}"


def shifted(library: str, seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is ahead by so many seconds, all other clocks being right.

    datefudge shifts what ``time``, ``gettimeofday`` and ``clock_gettime(CLOCK_REALTIME)`` say, and nothing else;
    Debian's libfaketime 0.9.10 makes Python's ``time.sleep`` fail.
    """
    return {"LD_PRELOAD": library, "DATEFUDGE": str(-seconds)}


def datefudge() -> str | None:
    """Where its library is; None: it is missing, which CI does not let pass."""
    libraries = sorted(Path("/usr/lib").glob(_LIBRARY))
    if not libraries and os.environ.get("CI") == "true":
        raise ServiceMissing("datefudge is not installed (Debian, Ubuntu: apt-get install datefudge)")
    return str(libraries[0]) if libraries else None
