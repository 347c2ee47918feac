"""The purge: what retention lets go is deleted beside the relay's other work, at half of its pace at most."""

from collections.abc import Callable
from typing import Final

from outbox.store.retention import Periods, Retention
from relay.events import Events

#: Rows of one transaction.
_ROWS: Final = 500
#: Seconds for which one run goes on; what is left is the next one's.
LONGEST: Final = 600.0


class Purge:
    """Small batches until nothing is old enough, another relay purges, this one stops, or ten minutes are over: however
    large the backlog, each run ends, so that one that hangs can be told from it.

    ``rest`` waits so many seconds, or returns True at once where the relay stops. After each batch it is asked to wait
    as long as the batch took: so the passes never see more than half a connection's worth of deletions.
    """

    def __init__(
        self,
        retention: Retention,
        periods: Periods,
        events: Events,
        now: Callable[[], float],
        rest: Callable[[float], bool],
    ) -> None:
        self._retention = retention
        self._periods = periods
        self._events = events
        self._now = now
        self._rest = rest

    def run(self) -> None:
        """To be called from time to time."""
        began = self._now()
        until = began + LONGEST
        for rows in self._retention.run(self._periods, _ROWS):
            self._events.purged(rows)
            if self._rest(self._now() - began) or self._now() >= until:
                return
            began = self._now()
