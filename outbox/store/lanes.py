"""Lanes: rows of one topic and one lane become visible one after another, in the order of their ids.

A row stands in its lane from the insert until it ends (``outbox.open_lane``); the one with the lowest id is the lane's
head, and only the head is ever shipped. A row that a claim meets behind its head is *parked*, which takes it out of the
claim index, and the move that ends the head un-parks the next one in its own transaction.

Two locks, which end with the transaction that takes them. Nobody ever takes both:

*producers* take the first, before their insert draws its id, and hold it as long as their business transaction lasts.
No daemon takes it, so a settlement never waits for a business transaction, and nothing is left to the sweep because one
is open.

*claims that park, and moves that end a row of a lane*, take the second, in the order of its slots: a claim once it has
committed its leases and holds no row, an ending after its rows. The transactions of daemons are short. Whoever has it
looks at the lane once more, in a new statement: a claim parks only behind a head that is still open, and the end of a
head finds every row that was parked before. Neither waits for the row that it names: a next row that somebody else has
locked (an operator's cancel; on MariaDB a business transaction that adds the same key again) is left as it is, to that
cancel or to the sweep. On MariaDB its write may wait for an index entry that a claim has locked in passing; so whoever
claims holds no row while it waits for the second lock.

From-states: *parking* takes pending rows that this very claim has leased (the lease id is compared), and with them
others behind them that are due, so under no lease, and leaves them without a token: every half of theirs gets ROLLBACK.
*Un-parking* changes the flag of pending rows alone. If a claim dies between its leases and the parking, the leases run
out, and the rows are met again. If the process dies before its transaction ends, nothing happened: the head is open,
its lease or commit lease runs out, and whoever ends it un-parks. After it, nothing is left to do.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import Move, sources_of
from outbox.schema import claimable, outbox
from outbox.store.change import Change, Ending, attempt_failed, due, in_place, nobody_attempts
from outbox.store.clock import earliest, utc_now
from outbox.store.database import plan_freely
from outbox.store.given import given
from outbox.store.notifications import announce
from outbox.store.snapshot import beyond_snapshot

#: PostgreSQL: the first halves of the keys of our advisory locks, "lane" and "park" in ASCII.
_PRODUCERS: Final = 0x6C616E65
_DAEMONS: Final = 0x7061726B
#: Producers of lanes that share a slot wait for each other; on MariaDB and MySQL each slot in use is a row for ever.
_PRODUCER_SLOTS: Final = 65_536
#: The daemons' slots lie behind those of the producers. Few enough for PostgreSQL's table of locks, however many lanes
#: a pass has, and many enough that two passes seldom wait for each other.
_DAEMON_SLOTS: Final = 4_096
#: Followers that are parked beside those that a claim has met.
_PARKED_AT_ONCE: Final = 1_000

#: Looks at a next row that is locked: MariaDB's claims lock for a moment what they only pass by.
_TRIES: Final = 3

#: Whether a dead row of the topic holds its lane until an operator decides.
HoldsLane = Callable[[str], bool]

_ADVISORY: Final = sa.text("SELECT pg_advisory_xact_lock(:purpose, :slot)")
_ADVISORY_ALL: Final = sa.text(
    "SELECT pg_advisory_xact_lock(:purpose, slot) FROM unnest(CAST(:slots AS integer[])) AS it (slot)"
)
#: The order of the index of lanes.
_PLACE: Final[tuple[sa.ColumnElement[Any], ...]] = (outbox.c.open_lane, outbox.c.id)
#: An exclusive lock on the slot's row, whether it is there already or not, and nothing written if it is.
_SLOT: Final = "INSERT INTO outbox_lane (slot) VALUES (:slot) ON DUPLICATE KEY UPDATE slot = slot"
_SLOTS: Final = sa.text(
    "INSERT INTO outbox_lane (slot) SELECT slot FROM JSON_TABLE(:slots, '$[*]' COLUMNS (slot INT PATH '$')) AS it "
    "ORDER BY slot ON DUPLICATE KEY UPDATE slot = outbox_lane.slot"
)


def lane_key(topic: str, lane: str) -> str:
    """The lane's name within the whole outbox: a lane belongs to a topic. No topic holds a slash."""
    return f"{topic}/{lane}"


def lane_key_of_row() -> sa.ColumnElement[str]:
    """The same of the row itself; NULL where it has no lane."""
    return outbox.c.topic.concat(sa.literal_column("'/'")).concat(outbox.c.lane)


def always(topic: str) -> bool:  # noqa: ARG001 -- a ``HoldsLane``
    """Every dead row holds its lane."""
    return True


def line_up(connection: Connection, key: str) -> None:
    """Waits until no other transaction adds to the lane, and keeps them waiting until this one ends.

    To be called before the insert draws its id: then the order of ids in the lane is the order of commits. SQLite has
    one writer at a time, and draws ids under the lock of that writer: nothing to do.
    """
    hashed = zlib.crc32(key.encode())
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY, {"purpose": _PRODUCERS, "slot": hashed & 0x7FFFFFFF})
    elif connection.dialect.name in MYSQL_FAMILY:
        connection.execute(sa.text(beyond_snapshot(connection) + _SLOT), {"slot": hashed % _PRODUCER_SLOTS})


class Lanes:
    """The statements about lanes; each method is part of the caller's transaction."""

    def __init__(self, dialect: str) -> None:
        self._in_hex = dialect in MYSQL_FAMILY
        self._given = given(dialect, {"lane": str})
        self._heads = _heads(dialect, self._given.table)
        self._next = _next_followers(dialect)
        self._park = _park(dialect)
        self._park_due = _park_due(dialect)
        self._unpark = _unpark(dialect)

    def behind(self, connection: Connection, rows: Sequence[Any]) -> dict[int, str]:
        """Those of the rows (ids to lanes) that stand behind the head of their lane; no statement where none has."""
        return self._behind(connection, {row.id: lane_key(row.topic, row.lane) for row in rows if row.lane is not None})

    def park(self, connection: Connection, behind: Mapping[int, str], fresh: str, met: int) -> dict[int, str]:
        """Parks those of the rows, leased under ``fresh``, that still stand behind their heads, and says which.

        To be called in a transaction that holds no row yet: on MariaDB whoever has the locks of lanes may have to wait
        for an index entry that a claim has locked in passing.
        """
        _lock(connection, behind.values())
        behind = self._behind(connection, behind)
        others = self._others(connection, behind, met)
        plan_freely(connection)
        self._park.apply(connection, [{"id": row_id, "lease": fresh} for row_id in behind])
        self._park_due.apply(connection, [{"id": row_id} for row_id in others])
        return behind

    def _others(self, connection: Connection, behind: Mapping[int, str], met: int) -> Sequence[int]:
        """What follows in a lane that fills the page: a claim before 100,000 followers need not meet each of them."""
        lane, count = Counter(behind.values()).most_common(1)[0] if behind else ("", 0)
        if 2 * count < met or not count:
            return ()
        last = max(row_id for row_id, named in behind.items() if named == lane)
        return connection.execute(self._next, {"lane": lane, "last": last}).scalars().all()

    def go_on(self, connection: Connection, lanes: Collection[str]) -> list[int]:
        """Un-parks the heads of these lanes, whose heads so far the caller's transaction has ended; their ids.

        To be called once in a transaction, after all its endings: the locks are taken in order.
        """
        if not lanes:
            return []
        _lock(connection, lanes)
        heads = connection.execute(self._heads, self._named(lanes)).all()
        waiting = {head.id for head in heads if head.parked}
        woken: list[int] = []
        for _ in range(_TRIES):
            woken += self._unpark.apply(connection, [{"id": row_id} for row_id in waiting.difference(woken)])
        return woken

    def end(
        self, connection: Connection, ending: Ending, rows: Iterable[Mapping[str, object]], *, tell: bool = True
    ) -> list[int]:
        """Ends the rows that pass, and has their lanes go on; the ids of those that ended.

        ``tell``: relays that sleep are told of lanes that go on. To be called once in a transaction, as ``go_on``.
        """
        left = ending.end(connection, rows)
        if self.go_on(connection, left.lanes) and tell:
            announce(connection)
        return left.ids

    def stuck(self, connection: Connection, lanes: Collection[str]) -> list[str]:
        """Those of the lanes whose head is parked; nobody will end a row before it."""
        if not lanes:
            return []
        return [head.lane for head in connection.execute(self._heads, self._named(lanes)) if head.parked]

    def _named(self, lanes: Iterable[str]) -> dict[str, str]:
        return self._given.batch([{"lane": lane.encode().hex() if self._in_hex else lane} for lane in set(lanes)])

    def _behind(self, connection: Connection, laned: Mapping[int, str]) -> dict[int, str]:
        """Those of the rows (ids to lanes) that stand behind the head of their lane."""
        if not laned:
            return {}
        heads = {it.lane: it.id for it in connection.execute(self._heads, self._named(laned.values()))}
        return {row_id: lane for row_id, lane in laned.items() if row_id > (heads[lane] or row_id)}


def _parking() -> dict[str, Any]:
    """Out of the claim index, at the age that the row has."""
    return {"parked": sa.true(), "available_at": in_place()}


def _park(dialect: str) -> Change:
    """Of rows that this claim has leased: as if it had not."""
    return Change(
        dialect,
        sources_of(Move.COMMIT),
        columns={"lease": str},
        compare=lambda rows: outbox.c.lease_id == rows.lease,
        values=lambda rows: {**_parking(), **attempt_failed(rows), "attempts": outbox.c.attempts - 1},
    )


def _park_due(dialect: str) -> Change:
    """Of rows that nobody leases."""
    return Change(
        dialect,
        sources_of(Move.COMMIT),
        compare=lambda _: sa.and_(~outbox.c.parked, due()),
        values=lambda _: {**_parking(), **nobody_attempts()},
    )


def _unpark(dialect: str) -> Change:
    return Change(
        dialect,
        sources_of(Move.COMMIT),
        compare=lambda _: outbox.c.parked,
        # It was due when it was parked; where the clock was set back since, it would not be.
        values=lambda _: {"parked": sa.false(), "available_at": earliest(outbox.c.available_at, utc_now())},
    )


def _heads(dialect: str, lanes: sa.Subquery) -> sa.Select[Any]:
    """The head of each of the given lanes, and whether it is parked; NULL: nobody stands there.

    MariaDB remembers what a subquery has found for a text, and takes another one for the same that differs in blanks at
    its end; so there the names are given in hexadecimal digits. Bytes they have to be for the look-up in the index.
    """
    named: sa.ColumnElement[Any] = lanes.c.lane
    if dialect in MYSQL_FAMILY:
        named = sa.type_coerce(sa.func.unhex(named), outbox.c.open_lane.type)

    def first(which: sa.ColumnElement[bool], *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """The first entry of the lane's index; MariaDB 11 would rather look for it row by row, in the order of ids."""
        head = sa.select(*columns).where(which).order_by(*_PLACE).limit(1)
        return _by_lane(head, dialect)

    columns = (outbox.c.id, outbox.c.parked)
    if dialect == "postgresql":
        # So would PostgreSQL where it believes that many stand in a lane: with ``open_lane =`` it takes ORDER BY
        # open_lane, id for ORDER BY id, which the primary key has too. After a range only the index of lanes has it.
        head = first(outbox.c.open_lane >= named, *columns, outbox.c.open_lane).lateral("head")
        found: Any = sa.select(lanes.c.lane, head.c.id, head.c.parked)
        return found.select_from(lanes.outerjoin(head, head.c.open_lane == named))  # type: ignore[no-any-return]
    standing = outbox.c.open_lane == named
    heads = (first(standing, column).scalar_subquery().label(column.key) for column in columns)
    return sa.select(named.label("lane"), *heads)


def _next_followers(dialect: str) -> sa.Select[int]:
    """Rows of ``:lane`` behind ``:last``, which is behind its head, that nobody leases and nobody has locked."""
    lane: sa.ColumnElement[Any] = sa.bindparam("lane", type_=outbox.c.open_lane.type)
    last = sa.bindparam("last", type_=outbox.c.id.type)
    behind: sa.ColumnElement[bool] = sa.and_(outbox.c.open_lane == lane, outbox.c.id > last)
    place = _PLACE[1:]
    if dialect not in MYSQL_FAMILY:  # a range for the planner, as in ``_heads``
        behind, place = sa.and_(sa.tuple_(*_PLACE) > sa.tuple_(lane, last), outbox.c.open_lane <= lane), _PLACE
    rows = sa.select(outbox.c.id).where(behind, claimable(), due())
    rows = rows.order_by(*place).limit(_PARKED_AT_ONCE).with_for_update(skip_locked=True)
    return _by_lane(rows, dialect)


def _by_lane(rows: sa.Select[Any], dialect: str) -> sa.Select[Any]:
    """Through the index of lanes, where a hint may say so."""
    return rows.with_hint(outbox, "FORCE INDEX (ix_outbox_open_lane)", dialect) if dialect in MYSQL_FAMILY else rows


def _lock(connection: Connection, lanes: Iterable[str]) -> None:
    """The second lock of these lanes; SQLite's transactions have the whole file."""
    slots = sorted({zlib.crc32(lane.encode()) % _DAEMON_SLOTS for lane in lanes})
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY_ALL, {"purpose": _DAEMONS, "slots": slots})
    elif connection.dialect.name in MYSQL_FAMILY:
        connection.execute(_SLOTS, {"slots": str([_PRODUCER_SLOTS + slot for slot in slots])})
