"""Claims with leases in ``outbox_inbox``: a row that is not done and whose lease is over belongs to whoever claims it.

From-state of each write: *claim* inserts, or takes a row that is not done and whose lease is over (or that has none),
token + 1; *renew*, *release* and *finish* compare the token and that the row is not done. *finish* is part of the
business transaction and must change its row, or everything is rolled back; so a zombie's effect is never committed.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from outbox.columns import MYSQL_FAMILY
from outbox.consumer.claims import Claim, Earlier, insert_on_mysql
from outbox.consumer.drivers import begun
from outbox.consumer.errors import LeaseLost
from outbox.consumer.leases import Busy, Claimed, Contradicted, Finished
from outbox.consumer.schema import inbox
from outbox.store.clock import utc_after, utc_now

Taken = Claimed | Finished | Busy | Contradicted


class StateTable:
    """The claims of one database; times are its clock's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, claim: Claim, lease: float) -> Taken:
        """Inserts the row or takes it over; one transaction."""
        with begun(self._engine) as connection:
            token = _take(connection, claim, lease)
            taken = _standing(connection, claim) if token is None else Claimed(token)
            connection.commit()
            return taken

    def renew(self, claim: Claim, token: int, lease: float) -> bool:
        """Also where the lease is over and nobody has taken it."""
        return self._owned(claim, token, lease_until=utc_after(lease))

    def complete(self, claim: Claim, token: int) -> bool:
        """For handlers whose effects are elsewhere; ``finish`` does it inside the business transaction."""
        return self._owned(claim, token, done_at=utc_now(), lease_until=None)

    def release(self, claim: Claim, token: int) -> None:
        """The attempts stay counted."""
        self._owned(claim, token, lease_until=utc_now())

    def _owned(self, claim: Claim, token: int, **values: object) -> bool:
        with begun(self._engine) as connection:
            changed = connection.execute(_own(claim, token).values(**values)).rowcount
            connection.commit()
            return changed == 1


def finish(connection: Connection, claim: Claim, token: int) -> None:
    """Marks the effect of this transaction as done; ``LeaseLost`` if another owner has claimed the key."""
    if connection.execute(_own(claim, token).values(done_at=utc_now(), lease_until=None)).rowcount != 1:
        raise LeaseLost(f"key {claim.key!r}: another owner claimed it; this one's effect is rolled back")


def _own(claim: Claim, token: int) -> sa.Update:
    return inbox.update().where(claim.row(), inbox.c.token == token, inbox.c.done_at.is_(None))


def _free(claim: Claim) -> sa.ColumnElement[bool]:
    """The row may be taken over, by the same message only."""
    over = sa.or_(inbox.c.lease_until.is_(None), inbox.c.lease_until <= utc_now())
    same = sa.and_(inbox.c.topic == claim.topic, inbox.c.payload_hash == claim.payload_hash)
    return sa.and_(inbox.c.done_at.is_(None), over, same)


def _taking(lease: float) -> dict[str, Any]:
    return {"token": inbox.c.token + 1, "lease_until": utc_after(lease), "attempts": inbox.c.attempts + 1}


def _take(connection: Connection, claim: Claim, lease: float) -> int | None:
    """The new token; None: the row is done, or somebody's, or another message's."""
    fresh = claim.columns() | {"received_at": utc_now(), "lease_until": utc_after(lease), "token": 1, "attempts": 1}
    if connection.dialect.name in MYSQL_FAMILY:
        return _take_mysql(connection, claim, fresh, lease)
    build: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = build(inbox).values(fresh)
    statement = statement.on_conflict_do_update(
        index_elements=["consumer", "key"], set_=_taking(lease), where=_free(claim)
    )
    token: int | None = connection.execute(statement.returning(inbox.c.token)).scalar_one_or_none()
    return token


def _take_mysql(connection: Connection, claim: Claim, fresh: dict[str, Any], lease: float) -> int | None:
    """Update first: a plain INSERT that fails holds a shared lock on the row, and two of them deadlock."""
    if connection.execute(inbox.update().where(claim.row(), _free(claim)).values(_taking(lease))).rowcount:
        return int(connection.execute(sa.select(inbox.c.token).where(claim.row())).scalar_one())
    return 1 if insert_on_mysql(connection, fresh) else None


def _standing(connection: Connection, claim: Claim) -> Finished | Busy | Contradicted:
    """Why the row cannot be taken. One that has just become free counts as busy for no time."""
    columns = (inbox.c.topic, inbox.c.payload_hash, inbox.c.done_at, inbox.c.lease_until, utc_now().label("now"))
    row = connection.execute(sa.select(*columns).where(claim.row())).one_or_none()
    if row is None:
        return Busy(0.0)
    earlier = Earlier.of(row)
    if reason := earlier.contradicts(claim):
        return Contradicted(reason)
    if earlier.is_done:
        return Finished()
    return Busy(max(0.0, (row.lease_until - row.now).total_seconds()) if row.lease_until else 0.0)
