"""Decisions: what the relay writes about the attempts of one pass, in one transaction.

Every write leaves ``pending`` only and compares token and lease id. If the relay dies before the transaction commits,
its halves are adopted or rolled back by the check-back once the lease is over; if it dies after it, the reconciler and
the check-back carry the decision out. What ends a row un-parks the next one of its lane in the same transaction, once
for all (``store.lanes``); a buried row keeps its place where its topic's lanes are held.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from outbox import faults
from outbox.brokers.base import Half
from outbox.identity import fresh_token
from outbox.lifecycle import Move, sources_of
from outbox.message import Mode
from outbox.schema import REASON_LENGTH, outbox
from outbox.shown import cause
from outbox.store.attempt import Attempt
from outbox.store.change import (
    Change,
    Ending,
    again_after,
    attempt_failed,
    earlier_token,
    in_place,
    no_attempt,
    own_attempt,
)
from outbox.store.clock import utc_now
from outbox.store.conflicts import repeated
from outbox.store.database import Database
from outbox.store.given import AnyText
from outbox.store.halves import chosen_half, half_columns, half_values
from outbox.store.lanes import HoldsLane, Lanes, always

_log = logging.getLogger(__name__)

_ATTEMPT: dict[str, type] = {"token": str, "lease": str}
#: Stands for "no delay, and its place among the others" in the statement.
_IN_PLACE = -1.0


@dataclass(frozen=True, slots=True)
class Winner:
    """An attempt whose half the broker stored."""

    attempt: Attempt
    half: Half


@dataclass(frozen=True, slots=True)
class Refusal:
    """An attempt that the broker refused; counted, and tried again after ``delay`` seconds (None: buried)."""

    attempt: Attempt
    reason: str
    delay: float | None


@dataclass(frozen=True, slots=True)
class Return:
    """An attempt given back, not counted as a failure, to be claimed again after ``delay`` seconds; None: in its place
    among the others, as if it had not been claimed.

    ``adoptable``: its half may be stored, so the token is kept and the check-back may adopt that half.
    """

    attempt: Attempt
    delay: float | None
    adoptable: bool = False
    #: Kept with the row; "": what was kept before stays.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """A plain message that the broker stored, under this unique id."""

    attempt: Attempt
    unique_id: str


_Outcome = TypeVar("_Outcome", Winner, Published, Refusal, Return)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All that one pass learned."""

    winners: Sequence[Winner] = field(default=())
    published: Sequence[Published] = field(default=())
    refusals: Sequence[Refusal] = field(default=())
    returns: Sequence[Return] = field(default=())

    def without(self, written: Collection[int]) -> "Outcomes":
        """Those of other rows."""

        def others(outcomes: Sequence[_Outcome]) -> list[_Outcome]:
            return [it for it in outcomes if it.attempt.row_id not in written]

        return Outcomes(others(self.winners), others(self.published), others(self.refusals), others(self.returns))

    def __len__(self) -> int:
        """How many rows."""
        return len(self.winners) + len(self.published) + len(self.refusals) + len(self.returns)


class Decisions:
    """The relay's decisive writes."""

    def __init__(self, database: Database, holds_lane: HoldsLane = always) -> None:
        self._database = database
        self._holds_lane = holds_lane
        self._lanes = Lanes(database.dialect)
        self._commit = _commit(database.dialect)
        self._publish = _publish(database.dialect)
        self._refuse = _refuse(database.dialect)
        self._bury = _bury(database.dialect)
        self._return = _return(database.dialect)

    def decide(self, outcomes: Outcomes, commit_lease: float) -> set[int]:
        """Writes the outcomes of a pass; the ids of the rows that chose their winner, under ``commit_lease`` seconds.

        Rows that another transaction holds are asked about once more: a claim locks every row that it meets for as long
        as it lasts, also one whose lease came a moment before. What is still held then is left to its lease, and so is
        what the database does not take a second time.

        An exception leaves open whether the transaction was committed: the caller then sends neither COMMIT nor
        ROLLBACK, and check-back and reconciler find out.
        """
        committed, written = repeated(lambda: self._write(outcomes, commit_lease))
        if len(written) < len(outcomes):
            left = outcomes.without(written)
            try:
                committed |= self._write(left, commit_lease)[0]
            except SQLAlchemyError as error:
                _log.warning("rows that another transaction held are left to their leases: %s", cause(error))
        return committed

    def _write(self, outcomes: Outcomes, commit_lease: float) -> tuple[set[int], set[int]]:
        """One transaction; the rows that chose their winner, and all that were written."""
        with self._database.transaction() as connection:
            published = self._publish.end(connection, map(_published, outcomes.published))
            refusals = (_refused(it) for it in outcomes.refusals if it.delay is not None)
            refused = self._refuse.apply(connection, refusals)
            buried = self._bury.end(connection, (self._buried(it) for it in outcomes.refusals if it.delay is None))
            returned = self._return.apply(connection, map(_returned, outcomes.returns))
            winners = map(_winner, outcomes.winners)
            committed = self._commit.apply(connection, winners, seconds=commit_lease, new_lease=fresh_token())
            self._lanes.go_on(connection, published.lanes | buried.lanes)
            faults.point("relay.during_decide")
            return set(committed), {*committed, *published.ids, *refused, *buried.ids, *returned}

    def _buried(self, it: Refusal) -> dict[str, object]:
        return _refused(it) | {"holds": int(self._holds_lane(it.attempt.topic))}


def _commit(dialect: str) -> Change:
    return Change.of_move(
        dialect, Move.COMMIT, columns={**_ATTEMPT, **half_columns()}, compare=own_attempt, values=chosen_half
    )


def _publish(dialect: str) -> Ending:
    """Does not compare the lease: the broker stored it, whoever says so. Settling a repeat spares one."""
    return Ending.of_move(
        dialect,
        Move.DELIVER,
        columns={"half_id": str},
        compare=lambda _: outbox.c.mode == Mode.PLAIN,
        values=lambda rows: {"half_id": rows.half_id, "delivered_at": utc_now(), "reason": None, **no_attempt()},
    )


def _refuse(dialect: str) -> Change:
    return Change(
        dialect,
        sources_of(Move.BURY),
        columns={**_ATTEMPT, "reason": AnyText, "delay": float},
        compare=own_attempt,
        values=lambda rows: _counted(rows) | again_after(rows.delay),
    )


def _bury(dialect: str) -> Ending:
    return Ending.of_move(
        dialect,
        Move.BURY,
        columns={**_ATTEMPT, "reason": AnyText, "holds": int},
        compare=own_attempt,
        holds=lambda rows: rows.holds == 1,
        values=_counted,
    )


def _return(dialect: str) -> Change:
    return Change(
        dialect,
        sources_of(Move.COMMIT),
        columns={**_ATTEMPT, "delay": float, "adoptable": int, "reason": AnyText},
        compare=own_attempt,
        values=lambda rows: {
            "token": sa.case((rows.adoptable == 1, outbox.c.token), else_=earlier_token(rows)),
            "lease_id": None,
            "reason": sa.func.coalesce(sa.func.nullif(rows.reason, ""), outbox.c.reason),
            "available_at": sa.case((rows.delay < 0, in_place()), else_=again_after(rows.delay)["available_at"]),
        },
    )


def _counted(rows: Any) -> dict[str, object]:
    return {"reason": rows.reason, "failures": outbox.c.failures + 1, **attempt_failed(rows)}


def _given(attempt: Attempt) -> dict[str, object]:
    return {"id": attempt.row_id, "token": attempt.token, "lease": attempt.lease_id}


def _winner(it: Winner) -> dict[str, object]:
    return _given(it.attempt) | half_values(it.half)


def _refused(it: Refusal) -> dict[str, object]:
    return _given(it.attempt) | {"reason": it.reason[:REASON_LENGTH], "delay": it.delay}


def _returned(it: Return) -> dict[str, object]:
    delay = _IN_PLACE if it.delay is None else it.delay
    return _given(it.attempt) | {"delay": delay, "adoptable": int(it.adoptable), "reason": it.reason[:REASON_LENGTH]}


def _published(it: Published) -> dict[str, object]:
    return {"id": it.attempt.row_id, "half_id": it.unique_id}
