"""What ``outbox doctor`` reads of the rows, beside the figures of ``outbox status``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.lifecycle import State, open_states
from outbox.message import Mode
from outbox.schema import claimable, outbox, state_in, unsettled
from outbox.schema import database as database_table
from outbox.store.clock import utc_after
from outbox.store.database import Database
from outbox.store.operations import Operations

#: Ids below the highest one that count as recent.
_RECENT: Final = 10_000
#: Reasons that are told apart.
_REASONS: Final = 5


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The outbox in figures."""

    rows: Mapping[State, int]
    #: Seconds since the longest waiting row could have been worked on; 0: none waits.
    oldest_due: float
    #: Seconds since the oldest decision that the broker has not confirmed; 0: there is none.
    oldest_unsettled: float
    #: Seconds since each listener's last heartbeat.
    heartbeats: Mapping[str, float]
    #: Open rows that were added, and could be published, more than ``long`` seconds ago.
    old: int
    #: Committed rows that were decided more than ``long`` seconds ago.
    unsettled_long: int
    #: The most frequent reasons of dead rows, and of such committed rows.
    dead: Mapping[str, int]
    unsettled: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OpenFacts:
    """What the rows that still owe a message need of the broker."""

    #: Of open and recent rows; transactional, if one of the topic's rows is.
    topics: Mapping[str, Mode]
    #: Committed rows by producer group.
    groups: Mapping[str, int]
    #: Pending rows: halves of the settings' producer group may be under way.
    pending: bool


class ExaminedRows:
    """Reads and changes nothing; raises ``sqlalchemy.exc.DBAPIError``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._operations = Operations(database)

    def facts(self, long: float) -> RowFacts:
        """All but the payloads; counts rows, as ``outbox status`` does."""
        figures = self._operations.figures()
        due_long_ago = sa.and_(
            outbox.c.created_at < utc_after(-long),
            sa.or_(outbox.c.not_before.is_(None), outbox.c.not_before < utc_after(-long)),
        )
        stuck = sa.and_(unsettled(), outbox.c.decided_at < utc_after(-long))
        return RowFacts(
            figures.rows,
            figures.oldest_due,
            figures.oldest_unsettled,
            figures.heartbeats,
            self._count(sa.and_(state_in(open_states()), due_long_ago)),
            self._count(stuck),
            self._reasons(state_in((State.DEAD,))),
            self._reasons(stuck),
        )

    def open(self) -> OpenFacts:
        """By indexes alone, however many rows there are."""
        groups = sa.select(outbox.c.half_group, sa.func.count()).where(unsettled()).group_by(outbox.c.half_group)
        pending = sa.select(sa.exists().where(claimable()))
        with self._database.transaction() as connection:
            counted = {group: number for group, number in connection.execute(groups) if group}
            return OpenFacts(self._topics(connection), counted, bool(connection.execute(pending).scalar()))

    @staticmethod
    def _topics(connection: Connection) -> dict[str, Mode]:
        recent = outbox.c.id > sa.select(sa.func.max(outbox.c.id) - _RECENT).scalar_subquery()
        query = sa.select(outbox.c.topic, outbox.c.mode).distinct()
        found: dict[str, Mode] = {}
        for which in (claimable(), unsettled(), recent):
            for topic, mode in connection.execute(query.where(which)):
                if found.get(topic) is not Mode.TRANSACTIONAL:
                    found[topic] = Mode(mode)
        return found

    def database_ids(self) -> list[str]:
        """The identities of this database; there should be one."""
        with self._database.transaction() as connection:
            return list(connection.execute(sa.select(database_table.c.database_id)).scalars())

    def _count(self, which: sa.ColumnElement[bool]) -> int:
        with self._database.transaction() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(outbox).where(which)).scalar_one()

    def _reasons(self, which: sa.ColumnElement[bool]) -> dict[str, int]:
        count = sa.func.count()
        query = sa.select(outbox.c.reason, count).where(which).group_by(outbox.c.reason)
        with self._database.transaction() as connection:
            rows = connection.execute(query.order_by(count.desc(), outbox.c.reason).limit(_REASONS))
            return {reason or "no reason": number for reason, number in rows}
