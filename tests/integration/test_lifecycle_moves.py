"""Every write of the store tried on a row in every state: legal moves move it, all others change nothing at all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from outbox.brokers.base import Half
from outbox.lifecycle import TRANSITIONS, Move, State, after, sources_of
from outbox.message import Mode
from outbox.schema import outbox
from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases, Holding
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Published, Refusal, Return, Winner
from outbox.store.operations import Operations
from tests.integration.rows import added, force

TOKEN, LEASE, HALF_ID = "aa" * 8, "bb" * 8, "CC" * 16


@dataclass(frozen=True, slots=True)
class Names:
    """What a writer says it holds."""

    token: str = TOKEN
    lease: str = LEASE
    half_id: str = HALF_ID

    def attempt(self, row_id: int) -> Attempt:
        return Attempt(
            row_id=row_id,
            topic="payments",
            key="k",
            tag=None,
            payload=b"{}",
            content_type="application/json",
            headers={},
            lane=None,
            mode=Mode.TRANSACTIONAL,
            failures=0,
            attempts=1,
            token=self.token,
            lease_id=self.lease,
        )

    def half(self) -> Half:
        return Half("payments", self.half_id, "broker-a", "1:2:3", "outbox-tests")

    def holding(self, row_id: int) -> Holding:
        return Holding(row_id, self.half(), self.lease, datetime.now(UTC))


OWN = Names()
FOREIGN = Names("dd" * 8, "ee" * 8, "FF" * 16)

#: One write of the store, on one row.
Write = Callable[[Database, int, Names], object]


def win(database: Database, row_id: int, names: Names) -> object:
    return Decisions(database).decide(Outcomes(winners=[Winner(names.attempt(row_id), names.half())]), 15)


def adopt(database: Database, row_id: int, names: Names) -> object:
    return CommitLeases(database).adopt(row_id, names.token, names.half(), 15)


def settle(database: Database, row_id: int, names: Names) -> object:
    return CommitLeases(database).settle([(row_id, names.half_id)])


def publish(database: Database, row_id: int, names: Names) -> object:
    return Decisions(database).decide(Outcomes(published=[Published(names.attempt(row_id), names.half_id)]), 15)


def cancel(database: Database, row_id: int, names: Names) -> object:
    return Operations(database).cancel([row_id], "no longer wanted")


def bury(database: Database, row_id: int, names: Names) -> object:
    return Decisions(database).decide(Outcomes(refusals=[Refusal(names.attempt(row_id), "refused", None)]), 15)


def requeue(database: Database, row_id: int, names: Names) -> object:
    return Operations(database).requeue([row_id])


def reopen(database: Database, row_id: int, names: Names) -> object:
    return CommitLeases(database).reopen(names.holding(row_id), "gone")


def give_up(database: Database, row_id: int, names: Names) -> object:
    return CommitLeases(database).give_up(names.holding(row_id), "outcome unknown")


def refuse(database: Database, row_id: int, names: Names) -> object:
    return Decisions(database).decide(Outcomes(refusals=[Refusal(names.attempt(row_id), "refused", 60)]), 15)


def give_back(database: Database, row_id: int, names: Names) -> object:
    return Decisions(database).decide(Outcomes(returns=[Return(names.attempt(row_id), 60)]), 15)


def renew(database: Database, row_id: int, names: Names) -> object:
    return Claims(database).renew([names.attempt(row_id)], 30)


def take_over(database: Database, row_id: int, names: Names) -> object:
    return CommitLeases(database).take_over(row_id, names.half_id, 15)


def postpone(database: Database, row_id: int, names: Names) -> object:
    return CommitLeases(database).postpone(names.holding(row_id), "denied", 60)


@dataclass(frozen=True, slots=True)
class Case:
    """A write, the move it makes, and the rows it is meant for."""

    write: Write
    move: Move
    sources: tuple[State, ...]
    mode: Mode = Mode.TRANSACTIONAL
    #: Who may make the move is compared as well (an operator may always).
    compares: bool = True

    def __str__(self) -> str:
        return self.write.__name__


#: Rows whose decision the database has recorded.
DECIDED = sources_of(Move.REOPEN)
MOVES = [
    Case(win, Move.COMMIT, sources_of(Move.COMMIT)),
    Case(adopt, Move.COMMIT, sources_of(Move.COMMIT)),
    # A transactional row is delivered only after its decision, a plain one at once.
    Case(settle, Move.DELIVER, DECIDED),
    Case(publish, Move.DELIVER, sources_of(Move.DELIVER), Mode.PLAIN, compares=False),
    Case(cancel, Move.CANCEL, sources_of(Move.CANCEL), compares=False),
    Case(bury, Move.BURY, sources_of(Move.BURY)),
    Case(requeue, Move.REQUEUE, sources_of(Move.REQUEUE), compares=False),
    Case(reopen, Move.REOPEN, sources_of(Move.REOPEN)),
    Case(give_up, Move.GIVE_UP, sources_of(Move.GIVE_UP)),
]


@dataclass(frozen=True, slots=True)
class Kept:
    """A write that is no move: the states whose rows it may touch."""

    write: Write
    sources: tuple[State, ...]

    def __str__(self) -> str:
        return self.write.__name__


KEPT = [
    Kept(refuse, sources_of(Move.BURY)),
    Kept(give_back, sources_of(Move.COMMIT)),
    Kept(renew, sources_of(Move.COMMIT)),
    Kept(take_over, DECIDED),
    Kept(postpone, DECIDED),
]


def rows_in_each_state(database: Database, mode: Mode) -> dict[State, int]:
    """A row in each state, each held under the same names, its lease over."""
    ids = added(database, len(State))
    for state, row_id in zip(State, ids, strict=True):
        half = {"half_id": HALF_ID, "half_broker": "broker-a", "half_handle": "1:2:3", "half_group": "outbox-tests"}
        held = {"token": TOKEN, "lease_id": LEASE, "available_at": utc_after(-1), "decided_at": utc_after(-2)}
        force(database, row_id, state=state, mode=mode, **half, **held)
    return dict(zip(State, ids, strict=True))


def row(database: Database, row_id: int) -> Mapping[str, Any]:
    with database.transaction() as connection:
        return dict(connection.execute(sa.select(outbox).where(outbox.c.id == row_id)).mappings().one())


@pytest.mark.parametrize("case", MOVES, ids=str)
def test_a_move_takes_the_rows_it_may_and_no_others(database: Database, case: Case) -> None:
    # Given a row in each state, held by the writer
    ids = rows_in_each_state(database, case.mode)
    before = {state: row(database, row_id) for state, row_id in ids.items()}
    # When the write is tried on each
    changed = {state for state, row_id in ids.items() if case.write(database, row_id, OWN)}
    # Then legal pairs lead where the lifecycle says, and no other row has changed in any column
    for state, row_id in ids.items():
        now = row(database, row_id)
        if state in case.sources:
            assert now["state"] == after(state, case.move)
        else:
            assert now == before[state]
    if case.write not in (publish, bury):  # those answer with the winners only
        assert changed == set(case.sources)


@pytest.mark.parametrize("case", [case for case in MOVES if case.compares], ids=str)
def test_a_move_by_somebody_else_changes_nothing(database: Database, case: Case) -> None:
    ids = rows_in_each_state(database, case.mode)
    before = {state: row(database, row_id) for state, row_id in ids.items()}
    for row_id in ids.values():
        assert not case.write(database, row_id, FOREIGN)
    assert {state: row(database, row_id) for state, row_id in ids.items()} == before


def test_a_transactional_row_is_never_published_without_its_decision(database: Database) -> None:
    ids = rows_in_each_state(database, Mode.TRANSACTIONAL)
    before = {state: row(database, row_id) for state, row_id in ids.items()}
    for row_id in ids.values():
        publish(database, row_id, OWN)
    assert {state: row(database, row_id) for state, row_id in ids.items()} == before


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_write_that_is_no_move_touches_its_states_only_and_leaves_them(database: Database, kept: Kept) -> None:
    ids = rows_in_each_state(database, Mode.TRANSACTIONAL)
    before = {state: row(database, row_id) for state, row_id in ids.items()}
    for row_id in ids.values():
        kept.write(database, row_id, OWN)
    for state, row_id in ids.items():
        now = row(database, row_id)
        assert now["state"] == state
        assert (now != before[state]) == (state in kept.sources)


@pytest.mark.parametrize("case", [case for case in MOVES if case.move in {
    Move.CANCEL, Move.BURY, Move.REQUEUE, Move.REOPEN, Move.GIVE_UP,
}], ids=str)  # fmt: skip
def test_a_move_that_ends_an_attempt_leaves_no_token_behind(database: Database, case: Case) -> None:
    # Given rows whose halves may be anywhere / When the attempt ends without a message
    ids = rows_in_each_state(database, case.mode)
    for state in case.sources:
        case.write(database, ids[state], OWN)
        # Then no half can be recognised any more: the check-back answers ROLLBACK to each
        now = row(database, ids[state])
        assert (now["token"], now["lease_id"]) == (None, None)


def test_between_them_the_writes_make_every_transition() -> None:
    made = {(state, case.move) for case in MOVES for state in case.sources}
    assert made == set(TRANSITIONS)
