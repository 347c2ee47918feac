"""The sweep: finds lanes that do not go on although nobody stands before their parked head.

Whoever ends a head un-parks the next row, so there is nothing to find, unless that row was locked at that moment by
somebody who did not end it, or rows were changed or deleted past the toolkit. Each run looks at the next so many lanes
with one step in their index for each, however many rows they have, and after the last one begins anew.
"""

from typing import Any, Final

import sqlalchemy as sa

from outbox.columns import MYSQL_FAMILY, ExactText
from outbox.schema import LANE_KEY_BYTES, outbox
from outbox.store.database import Database
from outbox.store.lanes import Lanes
from outbox.store.notifications import announce

#: Lanes of one run.
_LANES: Final = 500
_KEY: Final = ExactText(LANE_KEY_BYTES)


class LaneSweep:
    """Remembers where its tour has come to; for one thread."""

    def __init__(self, database: Database, lanes: int = _LANES) -> None:
        self._database = database
        self._lanes = Lanes(database.dialect)
        self._most = lanes
        self._tour = _loose_tour() if database.dialect in MYSQL_FAMILY else _recursive_tour()
        self._after = ""

    def run(self) -> list[int]:
        """Un-parks the heads of the next lanes of the tour; their ids, which are the ones that were forgotten."""
        with self._database.look() as connection:
            found = connection.execute(self._tour, {"after": self._after, "most": self._most}).scalars().all()
            stuck = self._lanes.stuck(connection, found)
        self._after = found[-1] if len(found) == self._most else ""
        if not stuck:
            return []
        with self._database.transaction() as connection:
            announce(connection)
            return self._lanes.go_on(connection, stuck)


def _loose_tour() -> sa.Select[Any]:
    """Up to ``:most`` lanes behind ``:after``: MySQL steps from group to group, and cannot bound an index by a row."""
    after = sa.bindparam("after", type_=_KEY)
    lanes = sa.select(outbox.c.open_lane).where(outbox.c.open_lane > after).group_by(outbox.c.open_lane)
    return lanes.order_by(outbox.c.open_lane).limit(sa.bindparam("most", type_=sa.Integer()))


def _recursive_tour() -> sa.Select[Any]:
    """Up to ``:most`` lanes behind ``:after``: each the first entry of the index that is greater than the last one."""

    def following(lane: sa.ColumnElement[str]) -> sa.ScalarSelect[str]:
        """NULL behind the last one."""
        return sa.select(sa.func.min(outbox.c.open_lane)).where(outbox.c.open_lane > lane).scalar_subquery()

    first = following(sa.bindparam("after", type_=_KEY)).label("lane")
    tour = sa.select(first, sa.literal_column("1").label("place")).cte("tour", recursive=True)
    more = sa.and_(tour.c.lane.is_not(None), tour.c.place < sa.bindparam("most", type_=sa.Integer()))
    tour = tour.union_all(sa.select(following(tour.c.lane), tour.c.place + 1).where(more))
    return sa.select(tour.c.lane).where(tour.c.lane.is_not(None)).order_by(tour.c.place)
