"""The host's monotonic clock: it only ever shortens what the holder of a lease dares to do.

The database's clock decides about leases; the host's wall clock decides nothing.
"""

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds on a clock that never steps and, where the system has one (Linux: CLOCK_BOOTTIME), counts suspend."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
