"""The one insert of the library call, so that a taken key leaves the caller's transaction usable on every database."""

from datetime import datetime, timedelta
from enum import Enum, auto
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from outbox.columns import MYSQL_FAMILY
from outbox.errors import DuplicateKey, PayloadMismatch
from outbox.lifecycle import INITIAL
from outbox.message import Message
from outbox.schema import outbox
from outbox.store.clock import latest, utc_after, utc_now
from outbox.store.lanes import lane_key
from outbox.store.notifications import announcing
from outbox.store.snapshot import beyond_snapshot

#: MySQL's and MariaDB's number for a unique violation (ER_DUP_ENTRY).
_DUPLICATE_ENTRY = 1062

#: The columns that a message fills.
_GIVEN = ("topic", "key", "tag", "payload", "content_type", "headers", "mode", "not_before", "lane", "open_lane")

#: The row that has a key.
_KEY = [sa.bindparam(name, type_=outbox.c[name].type) for name in ("topic", "key")]
_EARLIER = sa.select(outbox.c.id, outbox.c.payload, outbox.c.tag).where(
    *(outbox.c[bound.key] == bound for bound in _KEY),
)


class Due(Enum):
    """From when on the row may be claimed."""

    AT_ONCE = auto()
    FROM_A_MOMENT = auto()
    #: After the insert, by the database's clock.
    AFTER_A_DELAY = auto()


def insert(connection: Connection, message: Message, *, skip: bool) -> int:
    """Inserts the row and returns its id; raises as ``Outbox.add`` says."""
    columns = _columns(message)
    due = _due(message.not_before)
    insert_one = _mysql if connection.dialect.name in MYSQL_FAMILY else _on_conflict
    # Retention may delete the earlier row between the refused INSERT and the look at it: the key is free again.
    while (row_id := insert_one(connection, columns, due=due)) is None:
        if (earlier := _earlier(connection, columns)) is not None:
            return _taken(earlier, message, skip=skip)
    return row_id


def _columns(message: Message) -> dict[str, Any]:
    earliest = message.not_before
    return {
        "topic": message.topic,
        "key": message.key,
        "tag": message.tag,
        "payload": message.body,
        "content_type": message.content_type,
        "headers": {**message.headers, **message.timer.properties()},
        "mode": message.mode,
        "not_before": earliest.total_seconds() if isinstance(earliest, timedelta) else earliest,
        "lane": message.lane,
        "open_lane": None if message.lane is None else lane_key(message.topic, message.lane),
    }


def _due(earliest: datetime | timedelta | None) -> Due:
    if isinstance(earliest, timedelta):
        return Due.AFTER_A_DELAY
    return Due.AT_ONCE if earliest is None else Due.FROM_A_MOMENT


def _on_conflict(connection: Connection, columns: dict[str, Any], *, due: Due) -> int | None:
    """The conflict target is named, so that no other violation can hide behind it."""
    statement = _insert_on_conflict(connection.dialect.name, due=due)
    return connection.execute(statement, columns).scalar_one_or_none()


@cache
def _insert_on_conflict(dialect: str, *, due: Due) -> sa.Insert:
    """Built once: building it costs more than running it."""
    build = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = build(outbox).values(**_values(due=due)).on_conflict_do_nothing(index_elements=["topic", "key"])
    told = [announcing()] if dialect == "postgresql" else []
    return statement.returning(outbox.c.id, *told)


@cache
def _insert_mysql(*, due: Due) -> sa.Insert:
    return outbox.insert().values(**_values(due=due))


def _values(*, due: Due) -> dict[str, Any]:
    """Named binds of the columns' own types, and what is the same for every new row."""
    bound = {name: sa.bindparam(name, type_=outbox.c[name].type) for name in _GIVEN}
    same = {"state": INITIAL, "created_at": utc_now()}
    if due is Due.AFTER_A_DELAY:
        later = utc_after(sa.bindparam("not_before", type_=sa.Float()))
        return {**bound, **same, "not_before": later, "available_at": later}
    available_at = utc_now() if due is Due.AT_ONCE else latest(utc_now(), bound["not_before"])
    return {**bound, **same, "available_at": available_at}


def _mysql(connection: Connection, columns: dict[str, Any], *, due: Due) -> int | None:
    """A plain INSERT: INSERT IGNORE would cut over-long values, and a 1062 leaves the transaction usable.

    1062 does not say which unique key it means; a row with this key does, and the refused INSERT has locked it.
    """
    try:
        result = connection.execute(_insert_mysql(due=due), columns)
    except IntegrityError as error:
        is_duplicate = error.orig is not None and error.orig.args[0] == _DUPLICATE_ENTRY
        if not is_duplicate or _earlier(connection, columns) is None:
            raise
        return None
    return int(result.lastrowid)


def _earlier(connection: Connection, columns: dict[str, Any]) -> tuple[int, bytes, str | None] | None:
    """Id, payload and tag of the row that has the key."""
    known = {name: columns[name] for name in ("topic", "key")}
    if connection.dialect.name in MYSQL_FAMILY:
        # Under REPEATABLE READ a plain read may not see the row yet. The failed INSERT locked it already.
        row = connection.execute(_locked(beyond_snapshot(connection)), known).one_or_none()
    else:
        row = connection.execute(_EARLIER, known).one_or_none()
    return None if row is None else (row.id, row.payload, row.tag)


@cache
def _locked(before: str) -> sa.TextualSelect:
    """``_EARLIER`` for MySQL, with what stands before it, which no SELECT of SQLAlchemy's leaves room for."""
    words = "SELECT id, payload, tag FROM outbox WHERE topic = :topic AND `key` = :key LOCK IN SHARE MODE"
    return sa.text(before + words).bindparams(*_KEY).columns(outbox.c.id, outbox.c.payload, outbox.c.tag)


def _taken(earlier: tuple[int, bytes, str | None], message: Message, *, skip: bool) -> int:
    """Says whether the row that has the key is the same message."""
    row_id, payload, tag = earlier
    if (payload, tag) != (message.body, message.tag):
        raise PayloadMismatch(message.topic, message.key, row_id)
    if not skip:
        raise DuplicateKey(message.topic, message.key, row_id)
    return row_id
