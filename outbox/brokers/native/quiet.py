"""When a client of the native library can be shut down."""

from typing import Final

#: The client asks for routes so many seconds after its start, and again every so many (``MQClientFactory``,
#: ``startScheduledTask``; producers and consumers share it). A shutdown meanwhile interrupts a thread that cannot be
#: interrupted, and the process aborts.
_FIRST_ROUTES: Final = 3.0
_ROUTES_EVERY: Final = 30.0
#: What asking may take, and how much too early its clock may be.
_ROUTES_TAKE: Final = 2.0
_EARLY: Final = 0.1


def until_quiet(began: float, running: float, now: float) -> float:
    """Seconds until the client does not ask for routes; its start lay between ``began`` and ``running``."""
    since = now - (began + _FIRST_ROUTES - _EARLY)
    if since < 0:
        return 0.0
    return max(0.0, _EARLY + running - began + _ROUTES_TAKE - since % _ROUTES_EVERY)
