"""Claims: how a relay gets rows under a lease, and keeps them.

From-states and comparisons: *claim* takes rows in the claim index (pending, due, not parked) that no transaction holds;
*renew* compares token and lease id. If the relay dies before a claim commits, nothing happened; after it, the lease
runs out and the next claim draws a new token, which turns every half of the dead attempt into a superseded one.
A plain message cannot be called back: the token of an attempt without an outcome stays with its row, under the lease
ids of later ones, until the row is delivered. Of a lane only the head is shipped; rows that were leased behind it are
parked right after, in a transaction of its own (``store.lanes``).
"""

import logging
from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from outbox.clock import monotonic
from outbox.identity import fresh_token
from outbox.lifecycle import Move, sources_of
from outbox.message import BODY_BYTES
from outbox.shown import cause
from outbox.store.attempt import Attempt, attempt_of
from outbox.store.change import Change, own_attempt, seconds
from outbox.store.clock import utc_after
from outbox.store.conflicts import is_conflict
from outbox.store.database import Database
from outbox.store.lanes import Lanes
from outbox.store.lookback import Lookback
from outbox.store.taking import Taking

_log = logging.getLogger(__name__)

#: Rounds of one claim at most, where rows that it meets have to be parked, and seconds after which one that has rows to
#: ship begins no other: each parks up to a thousand rows in some 30 ms, and heads do not wait for all that is behind.
_ROUNDS = 16
_LONG = 0.1


class Claims:
    """The statements of the claim; each method is one transaction."""

    def __init__(self, database: Database, lookback: Lookback | None = None) -> None:
        """``lookback``: of the one thread that claims."""
        self._database = database
        self._lookback = lookback or Lookback()
        self._lanes = Lanes(database.dialect)
        self._taking = Taking(database.dialect)
        self._renew = Change(
            database.dialect,
            sources_of(Move.COMMIT),
            columns={"token": str, "lease": str},
            compare=own_attempt,
            values=lambda _: {"available_at": utc_after(seconds())},
        )

    def claim(self, limit: int, max_bytes: int, lease: float) -> list[Attempt]:
        """Up to ``limit`` due rows of together at most ``max_bytes`` (one row at least), leased for ``lease`` seconds.

        Oldest first. The transaction may be lost in a crash of the database server: then nobody holds the lease, and
        the halves sent under it are superseded by the next claim. What a claim at another server of the cluster took at
        the same time is not found; what was leased before an error is shipped.
        """
        attempts: list[Attempt] = []
        room = max_bytes
        long = monotonic() + _LONG
        for _ in range(_ROUNDS):
            try:
                taken, parked = self._round(limit - len(attempts), room, lease)
            except SQLAlchemyError as error:
                if not attempts and not is_conflict(error):
                    raise
                _log.debug("a claim found %d rows and no more: %s", len(attempts), cause(error))
                break
            attempts += taken
            room -= sum([len(it.payload) for it in taken])
            if not parked or len(attempts) == limit or (attempts and (room < BODY_BYTES or monotonic() > long)):
                break
        return attempts

    def _round(self, limit: int, max_bytes: int, lease: float) -> tuple[list[Attempt], int]:
        """The rows to ship, and how many others were met behind the heads of their lanes.

        Those are parked in a transaction of its own, which holds no row while it waits for the locks of lanes. If it
        fails, or the relay dies before it, they are under a lease that runs out, and are met again; heads are shipped.
        """
        # A fresh token is the lease id, and one draw serves the whole claim: a row id and a token name one attempt.
        fresh = fresh_token()
        parameters = {"rows": limit, "bytes": max_bytes, "seconds": lease, "fresh": fresh}
        with self._database.transaction(durable=False, index_order=True) as connection:
            rows = self._taking.take(connection, parameters, self._lookback)
            behind = self._lanes.behind(connection, rows)
        parked = 0
        if behind:
            try:
                with self._database.transaction(durable=False, index_order=True) as connection:
                    behind = self._lanes.park(connection, behind, fresh, len(rows))
                parked = len(behind)
            except SQLAlchemyError as error:
                _log.warning("%d rows behind the heads of their lanes are not parked: %s", len(behind), cause(error))
        return [attempt_of(row, fresh) for row in rows if row[0] not in behind], parked

    def renew(self, attempts: Iterable[Attempt], lease: float) -> set[int]:
        """Leases the attempts for ``lease`` seconds from now; the ids of the rows that are still theirs."""
        with self._database.transaction(durable=False) as connection:
            rows = [{"id": it.row_id, "token": it.token, "lease": it.lease_id} for it in attempts]
            return set(self._renew.apply(connection, rows, seconds=lease))
