"""Named points at which a test can stop or kill the running process; inert unless a test arms one.

``OUTBOX_TEST_FAULT=relay.before_decide=kill`` kills the process (SIGKILL) the first time it comes by that point, and
``=pause`` stops it (SIGSTOP) until a test continues it; ``@3`` behind the name waits for the third time.
"""

import itertools
import os
import signal
from collections import defaultdict

VARIABLE = "OUTBOX_TEST_FAULT"

_SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP} if hasattr(signal, "SIGKILL") else {}
_passed: "defaultdict[str, itertools.count[int]]" = defaultdict(lambda: itertools.count(1))


def point(name: str) -> None:
    """The process is at ``name``."""
    armed = os.environ.get(VARIABLE)
    if armed is not None and armed.startswith(name):
        _strike(name, armed)


def _strike(name: str, armed: str) -> None:
    where, _, action = armed.partition("=")
    at, _, times = where.partition("@")
    if at == name and next(_passed[name]) == int(times or 1):
        os.kill(os.getpid(), _SIGNALS[action])
