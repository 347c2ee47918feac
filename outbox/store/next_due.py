"""When work is due: one statement that reads one entry of an index, for whoever has nothing to do.

It locks nothing, and on PostgreSQL no transaction stands around it. A claim would be four round trips.
"""

from typing import Any

import sqlalchemy as sa

from outbox.schema import DUE_FIRST, claimable, outbox, unsettled
from outbox.store.clock import utc_now
from outbox.store.database import Database
from outbox.store.lookback import BACK, Lookback, within_look


class NextDue:
    """Looks at the heads of the claim index and of the commit-lease index; each of the two for one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claimable = _Head(claimable())
        self._unsettled = _Head(unsettled())

    def claim(self) -> float | None:
        """Seconds until the first row may be claimed (0 and less: now); None: there is none."""
        return self._claimable.seconds(self._database)

    def commit_lease(self) -> float | None:
        """Seconds until the first commit lease is over (0 and less: it is); None: there is none."""
        return self._unsettled.seconds(self._database)


class _Head:
    """The first entry of one index."""

    def __init__(self, condition: sa.ColumnElement[bool]) -> None:
        columns = (outbox.c.available_at, utc_now().label("now"))
        rows = sa.select(*columns).where(condition, within_look())
        self._first: Any = rows.order_by(*DUE_FIRST).limit(1)
        self._lookback = Lookback()

    def seconds(self, database: Database) -> float | None:
        """Until it is due."""
        with database.look() as connection, self._lookback.look() as look:
            found = connection.execute(self._first, {BACK: look.seconds}).one_or_none()
            if found is not None:
                look.ended_at(found.available_at, found.now)
        return None if found is None else float((found.available_at - found.now).total_seconds())
