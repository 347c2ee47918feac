"""The rows that an audit compares with the broker, read window by window of their ids."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from outbox.brokers.base import Half
from outbox.lifecycle import State, open_states
from outbox.message import Mode
from outbox.schema import outbox, state_in
from outbox.store.clock import utc_now
from outbox.store.database import Database
from outbox.store.halves import HALF, half_of

#: Ids of one window: so many rows at most are in memory, and each statement reads no more.
_WINDOW = 500

_COLUMNS = (
    outbox.c.id,
    *HALF,
    outbox.c.key,
    outbox.c.mode,
    outbox.c.state,
    outbox.c.created_at,
    outbox.c.not_before,
    outbox.c.decided_at,
    outbox.c.delivered_at,
)


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """What an audit needs to know of a row."""

    id: int
    topic: str
    key: str
    mode: Mode
    state: State
    #: The unique id of the message that won; None: there is none.
    unique_id: str | None
    #: The half that won; None: there is none, or the message is a plain one.
    half: Half | None
    created_at: datetime
    not_before: datetime | None
    decided_at: datetime | None
    delivered_at: datetime | None


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of some neighbouring ids."""

    last_id: int
    #: Of all its rows, in the range or not.
    topics: frozenset[str]
    rows: Sequence[AuditedRow]


class AuditedRows:
    """Reads rows without locking any."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:
        """The database's clock."""
        with self._database.transaction() as connection:
            return connection.execute(sa.select(utc_now())).scalar_one()

    def last_id(self) -> int:
        """The highest id; 0 where there is no row."""
        with self._database.transaction() as connection:
            return connection.execute(sa.select(sa.func.max(outbox.c.id))).scalar() or 0

    def windows(self, last_id: int, since: datetime, until: datetime, topic: str | None) -> Iterator[Window]:
        """Up to ``last_id``: open rows that were added before ``until``, and rows that ended within the range."""
        of_topic = [] if topic is None else [outbox.c.topic == topic]
        after = 0
        while (first := self._first_after(after)) is not None and first <= last_id:
            after = min(first + _WINDOW - 1, last_id)
            ids = [outbox.c.id.between(first, after), *of_topic]
            with self._database.transaction() as connection:
                topics = connection.execute(sa.select(outbox.c.topic).where(*ids).distinct()).scalars().all()
                found = connection.execute(sa.select(*_COLUMNS).where(*ids, _in_range(since, until))).all()
            yield Window(after, frozenset(topics), sorted(map(_row, found), key=lambda row: row.id))

    def by_ids(self, ids: Iterable[int]) -> dict[int, AuditedRow]:
        """Those of the rows that are there."""
        query = sa.select(*_COLUMNS).where(outbox.c.id.in_(list(ids)))
        with self._database.transaction() as connection:
            return {it.id: _row(it) for it in connection.execute(query)}

    def _first_after(self, row_id: int) -> int | None:
        """Skips gaps, however wide they are."""
        with self._database.transaction() as connection:
            return connection.execute(sa.select(sa.func.min(outbox.c.id)).where(outbox.c.id > row_id)).scalar()


def _in_range(since: datetime, until: datetime) -> sa.ColumnElement[bool]:
    ended = sa.func.coalesce(outbox.c.delivered_at, outbox.c.available_at)
    ended_within = sa.and_(ended >= since, ended < until)
    return sa.and_(outbox.c.created_at < until, sa.or_(state_in(open_states()), ended_within))


def _row(it: Any) -> AuditedRow:
    return AuditedRow(
        id=it.id,
        topic=it.topic,
        key=it.key,
        mode=Mode(it.mode),
        state=State(it.state),
        unique_id=it.half_id,
        half=None if it.half_broker is None else half_of(it),
        created_at=it.created_at,
        not_before=it.not_before,
        decided_at=it.decided_at,
        delivered_at=it.delivered_at,
    )
