"""When work is due: one statement that reads one entry of an index, for whoever has nothing to do.

It locks nothing, and on PostgreSQL no transaction stands around it. A claim would be four round trips.
"""

from typing import Any

import sqlalchemy as sa

from outbox.schema import claimable, outbox, unsettled
from outbox.store.clock import utc_now
from outbox.store.database import Database


class NextDue:
    """Looks at the heads of the claim index and of the commit-lease index; safe in several threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claimable = _head(claimable())
        self._unsettled = _head(unsettled())

    def claim(self) -> float | None:
        """Seconds until the first row may be claimed (0 and less: now); None: there is none."""
        return self._seconds(self._claimable)

    def commit_lease(self) -> float | None:
        """Seconds until the first commit lease is over (0 and less: it is); None: there is none."""
        return self._seconds(self._unsettled)

    def _seconds(self, head: Any) -> float | None:
        with self._database.look() as connection:
            found = connection.execute(head).one_or_none()
        return None if found is None else float((found.available_at - found.now).total_seconds())


def _head(condition: sa.ColumnElement[bool]) -> Any:
    columns = (outbox.c.available_at, utc_now().label("now"))
    return sa.select(*columns).where(condition).order_by(outbox.c.available_at, outbox.c.id).limit(1)
