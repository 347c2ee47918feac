"""Claims: how a relay gets rows under a lease, and keeps them.

From-states and comparisons: *claim* takes rows in the claim index (pending, due, not parked) that no transaction holds;
*renew* compares token and lease id. If the relay dies before a claim commits, nothing happened; after it, the lease
runs out and the next claim draws a new token, which turns every half of the dead attempt into a superseded one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY
from outbox.identity import fresh_token
from outbox.lifecycle import Move, sources_of
from outbox.message import Mode
from outbox.schema import claimable, outbox
from outbox.store.change import Change, own_attempt
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.given import given, ids, selecting, updating


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row under a fresh lease, as the relay ships it."""

    row_id: int
    topic: str
    key: str
    tag: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    lane: str | None
    mode: Mode
    #: Refusals so far.
    failures: int
    token: str
    lease_id: str


_CLAIMED = (
    outbox.c.id,
    outbox.c.topic,
    outbox.c.key,
    outbox.c.tag,
    outbox.c.payload,
    outbox.c.content_type,
    outbox.c.headers,
    outbox.c.lane,
    outbox.c.mode,
    outbox.c.failures,
)


class Claims:
    """The statements of the claim; each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        due = sa.and_(claimable(), outbox.c.available_at <= utc_now())
        self._candidates = (
            sa.select(outbox.c.id, sa.func.length(outbox.c.payload))
            .where(due)
            .order_by(outbox.c.available_at, outbox.c.id)
            .limit(sa.bindparam("rows"))
            .with_for_update(skip_locked=True)
        )
        chosen = given(database.dialect, {"id": int})
        self._lease = updating(
            database.dialect,
            chosen,
            {
                "token": sa.bindparam("fresh"),
                "lease_id": sa.bindparam("fresh"),
                "available_at": utc_after(sa.bindparam("seconds", type_=sa.Float())),
                "attempts": outbox.c.attempts + 1,
            },
        )
        self._read = selecting(database.dialect, chosen, *_CLAIMED)
        self._returns = database.dialect not in MYSQL_FAMILY
        self._renew = Change(
            database.dialect,
            sources_of(Move.COMMIT),
            columns={"token": str, "lease": str},
            compare=own_attempt,
            values=lambda _: {"available_at": utc_after(sa.bindparam("seconds", type_=sa.Float()))},
        )

    def claim(self, limit: int, max_bytes: int, lease: float) -> list[Attempt]:
        """Up to ``limit`` due rows of together at most ``max_bytes`` (one row at least), leased for ``lease`` seconds.

        Oldest first. The transaction may be lost in a crash of the database server: then nobody holds the lease, and
        the halves sent under it are superseded by the next claim.
        """
        with self._database.transaction(durable=False) as connection:
            sizes = connection.execute(self._candidates, {"rows": limit}).all()
            return self._take(connection, _within(max_bytes, sizes), lease) if sizes else []

    def renew(self, attempts: Iterable[Attempt], lease: float) -> set[int]:
        """Leases the attempts for ``lease`` seconds from now; the ids of the rows that are still theirs."""
        with self._database.transaction(durable=False) as connection:
            rows = [{"id": it.row_id, "token": it.token, "lease": it.lease_id} for it in attempts]
            return set(self._renew.apply(connection, rows, seconds=lease))

    def _take(self, connection: Connection, chosen: Sequence[int], lease: float) -> list[Attempt]:
        """The token is the lease id, and one draw serves the whole claim: a row id and a token name one attempt."""
        fresh = fresh_token()
        parameters: dict[str, Any] = {**ids(chosen), "fresh": fresh, "seconds": lease}
        if self._returns:
            rows = connection.execute(self._lease.returning(*_CLAIMED), parameters).all()
        else:
            connection.execute(self._lease, parameters)
            rows = connection.execute(self._read, ids(chosen)).all()
        by_id = {row.id: row for row in rows}
        return [_attempt(by_id[row_id], fresh) for row_id in chosen]


def _within(max_bytes: int, sizes: Iterable[Any]) -> list[int]:
    """The ids of the first rows that fit; the first one always does, or it could never be sent."""
    chosen: list[int] = []
    total = 0
    for row_id, size in sizes:
        total += size
        if chosen and total > max_bytes:
            break
        chosen.append(row_id)
    return chosen


def _attempt(row: Any, fresh: str) -> Attempt:
    columns = dict(zip(Attempt.__dataclass_fields__, row, strict=False))
    return Attempt(**columns | {"mode": Mode(columns["mode"]), "token": fresh, "lease_id": fresh})
