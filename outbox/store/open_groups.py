"""The producer groups under which the broker may still ask, read page by page however many decisions are open.

A transport that cannot confirm leaves every row committed for as long as the broker may ask: a million of them at a
thousand messages a second. To read them all takes seconds, and the check-back asks every ten seconds.
"""

from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa

from outbox.columns import Instant
from outbox.schema import DUE_FIRST, outbox, unsettled
from outbox.store.database import Database

#: Rows of one statement, and statements of one run.
_PAGE: Final = 10_000
_PAGES: Final = 10
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OpenGroups:
    """Goes through the open decisions in the order in which they become due, and remembers how far it came; for one
    thread. Of more than a page of one and the same moment it reads one page."""

    def __init__(self, database: Database, page: int = _PAGE, pages: int = _PAGES) -> None:
        self._database = database
        self._page = page
        self._pages = pages
        self._after = _BEGINNING
        self._inclusive, self._exclusive = (_groups(page, exclusive=it) for it in (False, True))

    def run(self) -> frozenset[str]:
        """The groups of the next decisions that the broker has not confirmed; after the last one it begins anew."""
        found: set[str] = set()
        for _ in range(self._pages):
            groups, last, rows = self._read(self._inclusive)
            if rows == self._page and last == self._after:  # a page of one moment, which would be read for ever
                groups, last, rows = self._read(self._exclusive)
            found |= groups
            self._after = last if rows == self._page else _BEGINNING
            if rows < self._page:
                break
        return frozenset(found)

    def _read(self, query: sa.Select[str, datetime, int]) -> tuple[set[str], datetime, int]:
        """The groups of one page, its last moment, and how many rows it has."""
        with self._database.transaction(index_order=True) as connection:
            found = connection.execute(query, {"after": self._after}).all()
        groups = {group for group, _, _ in found if group}
        return groups, max((last for _, last, _ in found), default=_BEGINNING), sum(rows for _, _, rows in found)


def _groups(page: int, *, exclusive: bool) -> sa.Select[str, datetime, int]:
    after = sa.bindparam("after", type_=Instant())
    beyond = outbox.c.available_at > after if exclusive else outbox.c.available_at >= after
    rows = sa.select(outbox.c.half_group, outbox.c.available_at).where(unsettled(), beyond)
    of = rows.order_by(*DUE_FIRST).limit(page).subquery()
    last: sa.ColumnElement[datetime] = sa.func.max(of.c.available_at)
    return sa.select(of.c.half_group, sa.type_coerce(last, Instant()), sa.func.count()).group_by(of.c.half_group)
