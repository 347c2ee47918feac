"""When a client of the native library can be shut down."""

import math
import time
from typing import Final

from outbox.clock import monotonic

#: The client asks for routes so many seconds after its start, and again every so many (``MQClientFactory``,
#: ``startScheduledTask``; producers and consumers share it). A shutdown meanwhile interrupts a thread that cannot be
#: interrupted, and the process aborts.
_FIRST_ROUTES: Final = 3.0
_ROUTES_EVERY: Final = 30.0
#: What asking may take, and how much too early its clock may be.
_ROUTES_TAKE: Final = 2.0
_EARLY: Final = 0.1
#: What a shutdown may do before it comes to that thread: it takes leave of the brokers.
_LEAVING: Final = 0.5
_BEFORE: Final = _EARLY + _LEAVING
_STEP: Final = 0.05


def until_quiet(began: float, running: float, now: float) -> float:
    """Seconds until the client does not ask for routes; its start lay between ``began`` and ``running``."""
    since = now - (began + _FIRST_ROUTES - _BEFORE)
    if since < 0:
        return 0.0
    return max(0.0, _BEFORE + running - began + _ROUTES_TAKE - since % _ROUTES_EVERY)


def wait_until_quiet(began: float, running: float) -> None:
    """Returns when the client does not ask for routes.

    Waits step by step: a time for which this process stands still is one in which its client gets no answer either.
    """
    while (left := until_quiet(began, running, monotonic())) > 0:
        for _ in range(math.ceil(left / _STEP)):
            time.sleep(_STEP)
