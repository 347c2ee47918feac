"""What ``outbox doctor`` reads of the rows, beside the figures of ``outbox status``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from outbox.lifecycle import State
from outbox.message import Mode
from outbox.schema import DUE_FIRST, claimable, outbox, set_aside, unsettled
from outbox.schema import database as database_table
from outbox.store.clock import utc_after
from outbox.store.database import Database
from outbox.store.gauges import Figures, Gauges

#: Ids below the highest one that count as recent, and rows that are looked at behind one index.
_RECENT: Final = 10_000
_LOOKED_AT: Final = 100_000
#: Reasons that are told apart.
_REASONS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts(Figures):
    """The figures, and what they do not say."""

    #: Open rows that were added, and could be published, more than ``long`` seconds ago; of the 100,000 due first.
    old: int
    #: Committed rows that were decided more than ``long`` seconds ago; of as many.
    unsettled_long: int
    #: The most frequent reasons of dead rows, and of such committed rows; of the first 10,000.
    dead: Mapping[str, int]
    unsettled: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OpenFacts:
    """What the rows that still owe a message need of the broker."""

    #: Of open and recent rows; transactional, if one of the topic's rows is.
    topics: Mapping[str, Mode]
    #: Committed rows by producer group; of the 100,000 due first.
    groups: Mapping[str, int]
    #: Pending rows: halves of the settings' producer group may be under way.
    pending: bool


class ExaminedRows:
    """Reads and changes nothing; raises ``sqlalchemy.exc.DBAPIError``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gauges = Gauges(database)

    def facts(self, long: float) -> RowFacts:
        """All but the payloads; a bounded number of rows is read, however many there are."""
        figures = self._gauges.figures()
        open_rows = [_first_of(which) for which in (claimable(), unsettled())]
        decided = _first_of(unsettled())
        return RowFacts(
            figures.rows,
            figures.oldest_due,
            figures.oldest_unsettled,
            figures.heartbeats,
            figures.estimated,
            old=sum(self._count(rows, _added_before(rows, long)) for rows in open_rows),
            unsettled_long=self._count(decided, decided.c.decided_at < utc_after(-long)),
            dead=self._reasons(sa.and_(set_aside(), outbox.c.state == State.DEAD), outbox.c.id),
            unsettled=self._reasons(unsettled(), outbox.c.available_at, outbox.c.decided_at < utc_after(-long)),
        )

    def open(self) -> OpenFacts:
        """By indexes alone, however many rows there are."""
        decided = sa.select(outbox.c.half_group).where(unsettled()).order_by(*DUE_FIRST).limit(_LOOKED_AT).subquery()
        groups = sa.select(decided.c.half_group, sa.func.count()).group_by(decided.c.half_group)
        pending = sa.select(sa.exists().where(claimable()))
        with self._database.transaction(index_order=True) as connection:
            counted = {group: number for group, number in connection.execute(groups) if group}
            return OpenFacts(self._topics(connection), counted, bool(connection.execute(pending).scalar()))

    @staticmethod
    def _topics(connection: Connection) -> dict[str, Mode]:
        """Of the rows that are due first, of decided ones, and of recent ones."""
        found: dict[str, Mode] = {}
        for which, order in ((claimable(), DUE_FIRST), (unsettled(), DUE_FIRST), (sa.true(), (outbox.c.id.desc(),))):
            rows = sa.select(outbox.c.topic, outbox.c.mode).where(which).order_by(*order).limit(_RECENT).subquery()
            for topic, mode in connection.execute(sa.select(rows.c.topic, rows.c.mode).distinct()):
                if found.get(topic) is not Mode.TRANSACTIONAL:
                    found[topic] = Mode(mode)
        return found

    def database_ids(self) -> list[str]:
        """The identities of this database; there should be one."""
        with self._database.transaction() as connection:
            return list(connection.execute(sa.select(database_table.c.database_id)).scalars())

    def _count(self, rows: sa.Subquery, which: ColumnElement[bool]) -> int:
        with self._database.transaction(index_order=True) as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(rows).where(which)).scalar_one()

    def _reasons(
        self, which: ColumnElement[bool], order: ColumnElement[Any], *more: ColumnElement[bool]
    ) -> dict[str, int]:
        first = sa.select(outbox.c.reason).where(which, *more).order_by(order).limit(_RECENT).subquery()
        count = sa.func.count()
        query = sa.select(first.c.reason, count).group_by(first.c.reason).order_by(count.desc(), first.c.reason)
        with self._database.transaction() as connection:
            return {reason or "no reason": number for reason, number in connection.execute(query.limit(_REASONS))}


def _first_of(which: ColumnElement[bool]) -> sa.Subquery:
    """The moments of so many rows as are read at once, by the index that holds them."""
    moments = (outbox.c.created_at, outbox.c.not_before, outbox.c.decided_at)
    return sa.select(*moments).where(which).order_by(*DUE_FIRST).limit(_LOOKED_AT).subquery()


def _added_before(rows: sa.Subquery, long: float) -> ColumnElement[bool]:
    since = utc_after(-long)
    return sa.and_(rows.c.created_at < since, sa.or_(rows.c.not_before.is_(None), rows.c.not_before < since))
