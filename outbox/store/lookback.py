"""How far back a look for due rows goes, where reading past all that has ended takes long.

A transaction that stays open (a dump, a report, a forgotten session) keeps PostgreSQL and MariaDB from clearing away
what has ended since: the index of due rows then begins with dead entries of every row that was shipped meanwhile, and
each look reads past all of them. After 100,000 rows that is a tenth of a second on PostgreSQL and half a second on
MariaDB, after a million ten times as much.

So once a look at the whole index took long, the next ones begin where the last one ended. They miss the few rows that
came to lie before that: those of transactions that committed late, the next ones of lanes, and what was given back in
its place. Looks at the whole index go on beside, for a part of the time, and find these.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from outbox.clock import monotonic
from outbox.schema import outbox
from outbox.store.clock import utc_after

#: A look at the whole index that takes so many seconds took long.
LONG: Final = 0.2
#: Seconds by which a look begins before the end of the last one: a row that is committed no later than so long after
#: its INSERT is met at once.
MARGIN: Final = 5.0
#: Rest between two looks at the whole index: so many times what the first took, and so many seconds at most.
_TIMES: Final = 3.0
_MOST: Final = 5.0
#: A look that goes so many seconds back goes through the whole index.
_EVER: Final = 3e9
#: The parameter of ``within_look``.
BACK: Final = "back"


@dataclass(slots=True)
class Look:
    """One look: how far back it has to go, and how far it came."""

    #: How far back it goes, by the database's clock.
    seconds: float
    #: Since how many seconds the last row that it found was due; 0: it found all there were; infinite: not known.
    ended: float = 0.0

    def ended_at(self, available_at: datetime, now: datetime) -> None:
        """The last row that it found, and the look's own moment, both by the database's clock."""
        self.ended = max(0.0, (now - available_at).total_seconds())


class Lookback:
    """Where the looks of one thread begin."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        #: How far the looks have come, by our clock; None: those at the whole index take no time worth sparing.
        self._reached: float | None = None
        #: When the next look at the whole index is.
        self._whole_again = -math.inf

    @property
    def matters(self) -> bool:
        """Whether looks at the whole index take long."""
        return self._reached is not None

    @contextmanager
    def look(self) -> Iterator[Look]:
        """The next look, which is the block; one that fails has not come any further."""
        began = self._now()
        look = Look(min(_EVER, self._seconds(began)))
        try:
            yield look
            self._reached = began - look.ended
        finally:
            if look.seconds >= _EVER:
                self._note_whole(began, self._now())

    def _note_whole(self, began: float, ended: float) -> None:
        """If it failed after a long time, a time-out may have ended it, and would end each that follows: then looks at
        what came since go on without it, or a relay that was started now would ship nothing at all."""
        self._whole_again = ended + min(_MOST, _TIMES * (ended - began))
        if ended - began < LONG:
            self._reached = None
        elif self._reached is None:
            self._reached = began

    def _seconds(self, now: float) -> float:
        if self._reached is None or now >= self._whole_again:
            return math.inf
        return now - self._reached + MARGIN


def within_look() -> sa.ColumnElement[bool]:
    """Rows that became due no longer ago than the parameter ``BACK`` says, in seconds."""
    return outbox.c.available_at >= utc_after(-sa.bindparam(BACK, type_=sa.Float()))
