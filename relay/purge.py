"""The purge: what retention lets go is deleted beside the relay's other work, at half of its pace at most."""

from collections.abc import Callable
from typing import Final

from outbox.store.retention import Periods, Retention
from relay.events import Events

#: Rows of one transaction.
_ROWS: Final = 500


class Purge:
    """Small batches until nothing is old enough, another relay purges, or this one stops.

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
        for rows in self._retention.run(self._periods, _ROWS):
            self._events.purged(rows)
            if self._rest(self._now() - began):
                return
            began = self._now()
