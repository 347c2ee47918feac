"""The store on real servers: claims, decisions, commit leases."""

import pytest
import sqlalchemy as sa
from sqlalchemy import text
from sqlalchemy.event import listens_for

from outbox.lifecycle import State
from outbox.message import Mode
from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Published, Refusal, Return, Winner
from outbox.store.given import AnyText, given
from outbox.verdict import RowView
from tests.integration.rows import LONG_LEASE, added, column, force, half_of, state_of

MIB = 1 << 20


def claimed(database: Database, limit: int = 10) -> list[Attempt]:
    return Claims(database).claim(limit, MIB, lease=LONG_LEASE)


def expire(database: Database, row_id: int) -> None:
    force(database, row_id, available_at=utc_after(-1))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="no-row"),
        pytest.param([""], id="a-lone-empty-text"),
        pytest.param(["", "", "b"], id="empty-texts"),
        pytest.param(["\x1f"], id="a-lone-separator"),
        pytest.param(["a\x1fb", "\x1f\x1f", "c"], id="separators"),
        pytest.param(["'\"\\,{}\n\t", "äß漢\U0001f600", "NULL"], id="odd-texts"),
    ],
)
def test_a_statement_sees_the_rows_that_it_is_given(database: Database, words: list[str]) -> None:
    # Given rows with a number, a text and a fraction each
    rows = given(database.dialect, {"id": int, "word": AnyText, "part": float})
    told = [(number, word, number / 8 - 1e-7) for number, word in enumerate(words, 2**40)]
    # When a statement reads them
    batch = rows.batch([dict(zip(("id", "word", "part"), row, strict=True)) for row in told])
    with database.transaction() as connection:
        seen = connection.execute(sa.select(rows.table).order_by(rows.table.c.id), batch).all()
    # Then it sees what was given
    assert [tuple(row) for row in seen] == told


def test_a_claim_takes_due_rows_in_order_and_only_once(database: Database) -> None:
    # Given three rows
    ids = added(database, 3)
    # When two claims follow each other
    first, second = claimed(database, 2), claimed(database, 2)
    # Then each row is leased once, the oldest first
    assert [it.row_id for it in first] == ids[:2]
    assert [it.row_id for it in second] == ids[2:]
    assert first[0].token == column(database, ids[0], "token")
    assert first[0].payload == b'{"n":1}'
    assert column(database, ids[0], "attempts") == 1


def test_a_claim_is_bounded_by_bytes_but_never_empty(database: Database) -> None:
    ids = added(database, 3, payload=b"x" * 1000)
    assert [it.row_id for it in Claims(database).claim(10, 2500, lease=LONG_LEASE)] == ids[:2]
    assert [it.row_id for it in Claims(database).claim(10, 10, lease=LONG_LEASE)] == ids[2:]


def test_a_row_is_claimed_again_once_its_lease_is_over(database: Database) -> None:
    (row_id,) = added(database)
    (first,) = claimed(database)
    assert claimed(database) == []
    expire(database, row_id)
    (second,) = claimed(database)
    assert second.token != first.token


def test_renewing_keeps_a_lease_and_fails_for_a_lost_one(database: Database) -> None:
    (row_id,) = added(database)
    (first,) = claimed(database)
    expire(database, row_id)
    assert Claims(database).renew([first], LONG_LEASE) == {row_id}
    assert claimed(database) == []
    expire(database, row_id)
    claimed(database)
    assert Claims(database).renew([first], LONG_LEASE) == set()


def test_a_decision_writes_each_outcome(database: Database) -> None:
    # Given one row for each outcome
    ids = added(database, 5)
    (plain_id,) = added(database)
    force(database, plain_id, mode="plain")
    win, refused, buried, unknown, away, plain = claimed(database)
    half = half_of()
    # When a pass is decided
    outcomes = Outcomes(
        winners=[Winner(win, half)],
        published=[Published(plain, "AB" * 16)],
        refusals=[Refusal(refused, "no such topic", LONG_LEASE), Refusal(buried, "illegal message", None)],
        returns=[Return(unknown, LONG_LEASE, adoptable=True), Return(away, LONG_LEASE)],
    )
    decided = Decisions(database).decide(outcomes, commit_lease=LONG_LEASE)
    # Then
    assert decided == {ids[0]}
    states = [state_of(database, row_id) for row_id in [*ids, plain_id]]
    assert states == [
        State.COMMITTED, State.PENDING, State.DEAD, State.PENDING, State.PENDING, State.DELIVERED,
    ]  # fmt: skip
    assert column(database, ids[0], "half_id") == half.half_id
    assert column(database, ids[0], "token") == win.token
    assert column(database, ids[0], "lease_id") != win.lease_id
    assert (column(database, ids[1], "failures"), column(database, ids[1], "reason")) == (1, "no such topic")
    assert column(database, ids[2], "token") is None
    assert column(database, ids[3], "token") == unknown.token
    assert column(database, ids[4], "token") is None
    assert claimed(database) == []


def test_a_superseded_attempt_decides_nothing(database: Database) -> None:
    (row_id,) = added(database)
    (zombie,) = claimed(database)
    expire(database, row_id)
    (fresh,) = claimed(database)
    decide = Decisions(database).decide
    assert decide(Outcomes(winners=[Winner(zombie, half_of())]), LONG_LEASE) == set()
    assert decide(Outcomes(refusals=[Refusal(zombie, "no", None)]), LONG_LEASE) == set()
    assert column(database, row_id, "token") == fresh.token
    assert state_of(database, row_id) is State.PENDING


def test_a_committed_row_is_taken_over_only_after_its_lease(database: Database) -> None:
    # Given a decided row
    (row_id,) = added(database)
    half = half_of()
    Decisions(database).decide(Outcomes(winners=[Winner(claimed(database)[0], half)]), LONG_LEASE)
    leases = CommitLeases(database)
    # When its commit lease is live, nobody gets it
    assert leases.take_over_due(10, LONG_LEASE) == []
    assert leases.take_over(row_id, half.half_id, LONG_LEASE) is None
    # When it is over, exactly one does
    expire(database, row_id)
    assert leases.take_over(row_id, "another half", LONG_LEASE) is None
    (holding,) = leases.take_over_due(10, LONG_LEASE)
    assert leases.take_over_due(10, LONG_LEASE) == []
    assert (holding.row_id, holding.half) == (row_id, half)
    assert 0 <= holding.age < LONG_LEASE
    # And settling needs the half only
    assert leases.settle([(row_id, "another")]) == set()
    assert leases.settle([(row_id, half.half_id)]) == {row_id}
    assert state_of(database, row_id) is State.DELIVERED


def test_an_expired_attempt_is_adopted_once(database: Database) -> None:
    (row_id,) = added(database)
    (attempt,) = claimed(database)
    leases, half = CommitLeases(database), half_of()
    assert leases.adopt(row_id, attempt.token, half, LONG_LEASE) is None
    expire(database, row_id)
    assert leases.adopt(row_id, "another", half, LONG_LEASE) is None
    holding = leases.adopt(row_id, attempt.token, half, LONG_LEASE)
    assert holding is not None
    assert holding.half == half
    assert leases.adopt(row_id, attempt.token, half_of(), LONG_LEASE) is None
    assert leases.read(row_id) == RowView(State.COMMITTED, attempt.token, half.half_id, lease_over=False)


def test_reopen_give_up_and_postpone_need_the_lease(database: Database) -> None:
    (row_id,) = added(database)
    Decisions(database).decide(Outcomes(winners=[Winner(claimed(database)[0], half_of())]), LONG_LEASE)
    leases = CommitLeases(database)
    expire(database, row_id)
    (old,) = leases.take_over_due(1, LONG_LEASE)
    expire(database, row_id)
    (new,) = leases.take_over_due(1, LONG_LEASE)
    assert not leases.reopen(old, "gone")
    assert not leases.give_up(old, "gone")
    assert not leases.postpone(old, "denied", LONG_LEASE)
    assert leases.postpone(new, "denied", LONG_LEASE)
    assert leases.take_over_due(1, LONG_LEASE) == []
    assert leases.reopen(new, "gone")
    assert state_of(database, row_id) is State.PENDING
    assert column(database, row_id, "token") is None
    assert column(database, row_id, "half_id") is None


def test_a_locked_row_is_skipped_and_stays_undecided(database: Database) -> None:
    if database.dialect == "sqlite":
        assert database.engine.dialect.name == "sqlite"  # one writer at a time: nothing to skip
        return
    ids = added(database, 2)
    first, second = claimed(database)
    with database.engine.connect() as other:
        other.execute(text("SELECT id FROM outbox WHERE id = :id FOR UPDATE"), {"id": ids[0]})
        outcomes = Outcomes(winners=[Winner(first, half_of()), Winner(second, half_of())])
        assert Decisions(database).decide(outcomes, LONG_LEASE) == {ids[1]}
    assert state_of(database, ids[0]) is State.PENDING


def test_a_row_that_was_locked_for_a_moment_is_decided_all_the_same(database: Database) -> None:
    if database.dialect == "sqlite":
        assert database.engine.dialect.name == "sqlite"  # one writer at a time: nothing to skip
        return
    # Given a row of a pass that a claim holds while the decision is written, and no longer
    ids = added(database, 3)
    half, plain, refused = claimed(database)
    force(database, plain.row_id, mode=Mode.PLAIN)
    outcomes = Outcomes([Winner(half, half_of())], [Published(plain, "id")], [Refusal(refused, "no", LONG_LEASE)])
    with database.engine.connect() as other:
        other.execute(text("SELECT id FROM outbox FOR UPDATE"))
        listens_for(database.engine, "commit", once=True)(lambda _: other.rollback())
        # When it is written
        decided = Decisions(database).decide(outcomes, LONG_LEASE)
    # Then nothing waits for the end of its lease
    assert decided == {half.row_id}
    assert [state_of(database, row_id) for row_id in ids] == [State.COMMITTED, State.DELIVERED, State.PENDING]
    assert column(database, refused.row_id, "failures") == 1
