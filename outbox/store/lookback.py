"""How far back a look at the rows that are due goes, where reading past all that has ended takes long.

A transaction that stays open (a dump, a report, a forgotten session) keeps PostgreSQL and MariaDB from clearing away
what has ended since: the index of due rows then begins with dead entries of every row that was shipped meanwhile, and
each look reads past all of them. After 100,000 rows that is a tenth of a second on PostgreSQL and half a second on
MariaDB, after a million ten times as much. So once a look from the beginning took long, the next ones begin where the
last one ended. A few rows lie before that: those of transactions that committed late, next ones of lanes, and what was
given back in its place. Looks from the beginning find them, which go on for a part of the time.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from outbox.clock import monotonic
from outbox.schema import outbox
from outbox.store.clock import utc_after

#: Seconds for a look from the beginning, from which on it took long.
LONG: Final = 0.2
#: Seconds by which the next look begins before the end of the last one: so much later than their insert transactions
#: may commit.
MARGIN: Final = 5.0
#: Seconds from a look from the beginning to the next: so many times what it took, and at most.
_TIMES: Final = 3.0
_MOST: Final = 5.0
#: Seconds before the first row.
_EVER: Final = 3e9


class Look:
    """One look."""

    def __init__(self, seconds: float) -> None:
        #: How far back it goes, by the database's clock.
        self.seconds = seconds
        #: How long before its own moment the last row that it found was due; 0: it found all; infinite: not known.
        self.ended = 0.0

    def ended_at(self, available_at: datetime, now: datetime) -> None:
        """The last row that it found, and the look's own moment, both by the database's clock."""
        self.ended = max(0.0, (now - available_at).total_seconds())


class Lookback:
    """Where the looks of one thread begin."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        #: How far the looks have come, by our clock; None: those from the beginning take no time worth sparing.
        self._reached: float | None = None
        self._whole_again = -math.inf

    @property
    def matters(self) -> bool:
        """Whether looks from the beginning take long."""
        return self._reached is not None

    @contextmanager
    def look(self) -> Iterator[Look]:
        """The next look, which is the block; one that fails has not come any further."""
        began = self._now()
        seconds = self._seconds(began)
        look = Look(min(_EVER, seconds))
        try:
            yield look
            if seconds < _EVER or self._now() - began >= LONG:
                self._reached = began - look.ended
            else:
                self._reached = None
        finally:
            if seconds >= _EVER:
                ended = self._now()
                self._whole_again = ended + min(_MOST, _TIMES * (ended - began))

    def _seconds(self, now: float) -> float:
        if self._reached is None or now >= self._whole_again:
            return math.inf
        return now - self._reached + MARGIN


def not_before(parameter: str) -> sa.ColumnElement[bool]:
    """Rows that became due no longer ago than the parameter of this name says, in seconds."""
    return outbox.c.available_at >= utc_after(-sa.bindparam(parameter, type_=sa.Float()))
