"""What operators ask and do, on real servers."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from outbox.identity import fresh_token
from outbox.lifecycle import State
from outbox.message import Mode
from outbox.schema import outbox
from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Published, Refusal, Return, Winner
from outbox.store.heartbeats import Heartbeats
from outbox.store.open_groups import OpenGroups
from outbox.store.operations import Filter, Operations
from outbox.verdict import HalfView, Step, verdict
from tests.integration.plans import analyze, planned
from tests.integration.rows import added, column, force, half_of, producer, state_of


@pytest.fixture
def operations(database: Database) -> Operations:
    return Operations(database)


def ids_of(database: Database) -> list[int]:
    with database.transaction() as connection:
        return list(connection.execute(sa.select(outbox.c.id).order_by(outbox.c.id)).scalars())


def test_figures_count_every_state_and_the_oldest_due_row(database: Database, operations: Operations) -> None:
    # Given an empty outbox
    empty = operations.figures()
    assert dict(empty.rows) == dict.fromkeys(State, 0)
    assert (empty.oldest_due, empty.oldest_unsettled, dict(empty.heartbeats)) == (0.0, 0.0, {})
    # When rows are in several states, one of them due for an hour, and a listener has been heard
    first, second, third, fourth = added(database, 4)
    force(database, first, available_at=utc_after(-3600))
    force(database, second, state=State.DEAD, available_at=utc_after(-9999))
    force(database, third, state=State.COMMITTED, decided_at=utc_after(-600))
    force(database, fourth, available_at=utc_after(9999))
    Heartbeats(database).beat("listener-1", 30)
    figures = operations.figures()
    # Then they are counted, and the dead row is not overdue
    assert {state: count for state, count in figures.rows.items() if count} == {
        State.PENDING: 2,
        State.COMMITTED: 1,
        State.DEAD: 1,
    }
    assert 3600 <= figures.oldest_due < 3700
    assert 600 <= figures.oldest_unsettled < 700
    assert 0 <= figures.heartbeats["listener-1"] < 60


def test_rows_are_listed_by_state_topic_and_key_page_by_page(database: Database, operations: Operations) -> None:
    payments = added(database, 3)
    (refund,) = added(database, topic="refunds")
    force(database, payments[1], state=State.DEAD, reason="refused")

    def listed(which: Filter, limit: int = 10, after: int = 0) -> list[int]:
        return [row["id"] for row in operations.listed(which, limit, after)]

    assert listed(Filter()) == [*payments, refund]
    assert listed(Filter(), 2) == payments[:2]
    assert listed(Filter(), 2, payments[1]) == [payments[2], refund]
    assert listed(Filter(state=State.DEAD)) == [payments[1]]
    assert listed(Filter(topic="refunds")) == [refund]
    assert listed(Filter(topic="payments", key=column(database, payments[2], "key"))) == [payments[2]]
    assert listed(Filter(topic="Refunds")) == []
    assert listed(Filter(ids=[refund, payments[0]])) == [payments[0], refund]
    assert "payload" not in operations.listed(Filter(), 1)[0]


def test_a_row_is_shown_whole(database: Database, operations: Operations) -> None:
    (row_id,) = added(database, payload=b"\x00\xff", headers={"a": "b"})
    shown = operations.shown(row_id)
    assert shown is not None
    assert (shown["payload"], shown["headers"], shown["state"]) == (b"\x00\xff", {"a": "b"}, State.PENDING)
    assert operations.shown(row_id + 1) is None


def test_cancelling_an_attempt_under_way_makes_its_half_roll_back(database: Database, operations: Operations) -> None:
    # Given a row whose half is on its way
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1, lease=30)
    half = half_of()
    # When the row is cancelled
    assert operations.cancel([row_id], "customer withdrew") == [row_id]
    # Then the relay's decision comes too late, and so does the half
    assert Decisions(database).decide(Outcomes(winners=[Winner(attempt, half)]), 15) == set()
    assert (state_of(database, row_id), column(database, row_id, "reason")) == (State.CANCELLED, "customer withdrew")
    row = CommitLeases(database).read(row_id)
    assert verdict(row, HalfView(attempt.token, half.half_id)) is Step.ROLLBACK
    assert operations.cancel([row_id], "again") == []


@pytest.mark.parametrize(
    ("outcome", "cancelled"),
    [
        pytest.param(lambda _: None, False, id="none, the relay died"),
        pytest.param(
            lambda it: Outcomes(returns=[Return(it, 0.0, adoptable=True, reason="reset")]), False, id="unknown"
        ),
        pytest.param(lambda it: Outcomes(returns=[Return(it, None)]), True, id="outage"),
        pytest.param(lambda it: Outcomes(refusals=[Refusal(it, "no", 0.0)]), True, id="refused"),
    ],
)
def test_a_plain_row_that_may_have_been_sent_cannot_be_called_back(
    database: Database, operations: Operations, outcome: Callable[[Attempt], Outcomes | None], cancelled: bool
) -> None:
    # Given a plain row under an attempt
    (row_id,) = added(database)
    force(database, row_id, mode=Mode.PLAIN)
    (attempt,) = Claims(database).claim(1, 1, lease=30)
    assert operations.cancel([row_id], "too late") == []
    # When that has ended in some way, and its lease is over
    if (outcomes := outcome(attempt)) is not None:
        Decisions(database).decide(outcomes, 15)
    force(database, row_id, available_at=utc_after(-1))
    # Then the row is cancelled only where it is known that nothing was sent
    assert operations.cancel([row_id], "in time") == ([row_id] if cancelled else [])


@pytest.mark.parametrize("first", ["died", "unknown"])
@pytest.mark.parametrize("then", ["outage", "refused", "buried and requeued", "parked", "released"])
def test_an_attempt_without_an_outcome_is_remembered_through_all_that_follow(
    database: Database, operations: Operations, first: str, then: str
) -> None:
    # Given a plain row whose first attempt may have sent it
    claims, decisions = Claims(database), Decisions(database)
    before, row_id = added(database, 2, lane="order-1")
    force(database, before, open_lane=None, available_at=utc_after(3600))
    force(database, row_id, mode=Mode.PLAIN)
    (attempt,) = claims.claim(1, 1, lease=30)
    assert attempt.row_id == row_id
    if first == "unknown":
        decisions.decide(Outcomes(returns=[Return(attempt, 0.0, adoptable=True, reason="reset")]), 15)
    force(database, row_id, available_at=utc_after(-1))
    # When a later one certainly sent nothing
    if then == "parked":
        force(database, before, open_lane=column(database, row_id, "open_lane"), available_at=utc_after(-1))
        assert [it.row_id for it in claims.claim(2, 1_000, lease=30)] == [before]
        assert column(database, row_id, "parked")
    else:
        (again,) = claims.claim(1, 1, lease=30)
        _fail(decisions, operations, again, then)
    # Then the row cannot be called back, and does not look as if nobody had tried to send it
    assert operations.cancel([row_id], "too late") == []
    # Until it is delivered
    decisions.decide(Outcomes(published=[Published(attempt, "id")]), 15)
    assert state_of(database, row_id) is State.DELIVERED


def _fail(decisions: Decisions, operations: Operations, attempt: Attempt, how: str) -> None:
    outcomes = {
        "outage": Outcomes(returns=[Return(attempt, 0.0, reason="no connection")]),
        "released": Outcomes(returns=[Return(attempt, None)]),
        "refused": Outcomes(refusals=[Refusal(attempt, "no", 0.0)]),
        "buried and requeued": Outcomes(refusals=[Refusal(attempt, "no", None)]),
    }
    decisions.decide(outcomes[how], 15)
    if how == "buried and requeued":
        assert operations.requeue([attempt.row_id]) == [attempt.row_id]


def test_a_requeued_row_starts_afresh(database: Database, operations: Operations) -> None:
    # Given a row that the broker refused for good
    (row_id,) = added(database)
    (attempt,) = Claims(database).claim(1, 1, lease=30)
    Decisions(database).decide(Outcomes(refusals=[Refusal(attempt, "no such topic", None)]), 15)
    assert state_of(database, row_id) is State.DEAD
    # When it is requeued
    assert operations.requeue([row_id]) == [row_id]
    # Then it can be claimed at once, with the whole budget of failures, and no old half can win
    (again,) = Claims(database).claim(1, 1, lease=30)
    assert (again.row_id, again.failures) == (row_id, 0)
    assert again.token != attempt.token
    assert column(database, row_id, "reason") is None
    assert column(database, row_id, "attempts") == 2


def test_requeueing_keeps_a_start_that_lies_ahead(database: Database, operations: Operations) -> None:
    (row_id,) = added(database)
    force(database, row_id, not_before=utc_after(3600))
    operations.cancel([row_id], "wait")
    assert operations.requeue([row_id]) == [row_id]
    assert column(database, row_id, "available_at") == column(database, row_id, "not_before")
    assert Claims(database).claim(1, 1, lease=30) == []


def test_many_rows_move_together_and_the_others_are_left_out(database: Database, operations: Operations) -> None:
    ids = added(database, 4)
    force(database, ids[1], state=State.DELIVERED)
    assert operations.cancel([ids[3], ids[0], ids[1], 10**12], "r" * 2000) == [ids[0], ids[3]]
    assert column(database, ids[0], "reason") == "r" * 1000
    assert operations.requeue(ids) == [ids[0], ids[3]]
    assert operations.cancel([], "none") == operations.requeue([]) == []


def test_undelivered_decisions_name_their_groups(database: Database) -> None:
    first, second, _ = added(database, 3)
    force(database, first, state=State.COMMITTED, half_id=fresh_token(), half_group="outbox-old-name")
    force(database, second, state=State.DELIVERED, half_group="outbox-done")
    assert OpenGroups(database).run() == {"outbox-old-name"}


def test_the_groups_of_many_decisions_are_found_page_by_page(database: Database) -> None:
    # Given more decisions than one call reads, many of one moment, and those of another group behind them
    ids = added(database, 11)
    for some, group, ago in ((ids[:6], "outbox-new", 100), (ids[6:9], "outbox-new", 50), (ids[9:], "outbox-old", 10)):
        decided = {"state": State.COMMITTED, "half_group": group, "available_at": utc_after(-ago)}
        with database.transaction() as connection:
            connection.execute(outbox.update().where(outbox.c.id.in_(some)).values(**decided))
    # When it is asked until it has been through twice; Then each group was told as often
    groups = OpenGroups(database, page=2, pages=2)
    told = [groups.run() for _ in range(8)]
    assert told[0] == {"outbox-new"}
    assert frozenset().union(*told) == {"outbox-new", "outbox-old"}
    assert sum("outbox-old" in it for it in told) >= 2


def test_dead_rows_are_listed_by_an_index(database: Database, operations: Operations) -> None:
    # Given a few dead rows behind many that were delivered
    ids = added(database, 200)
    with database.transaction() as connection:
        connection.execute(outbox.update().values(state=State.DELIVERED))
        connection.execute(outbox.update().where(outbox.c.id > ids[-4]).values(state=State.DEAD))
    analyze(database)
    # When they are listed page by page; Then all are told, and none of the others was read
    with planned(database) as plans:
        first = [row["id"] for row in operations.listed(Filter(State.DEAD, "payments"), 2)]
        assert first == ids[-3:-1]
        assert [row["id"] for row in operations.listed(Filter(State.DEAD), 2, first[-1])] == ids[-1:]
    assert plans.indexes() <= {"ix_outbox_set_aside", "ix_outbox_state"}


def test_a_key_is_found_whatever_its_topic(database: Database, operations: Operations) -> None:
    # Given a key that two topics have, and a state of one of its rows
    with database.transaction() as connection:
        ids = [producer.add(connection, topic=topic, key="key-1", payload={}) for topic in ("payments", "refunds")]
    added(database, 3)
    force(database, ids[1], state=State.DEAD)
    # When it is looked for; Then both are told, or the one in the state
    assert [row["id"] for row in operations.listed(Filter(key="key-1"), 10)] == ids
    assert [row["id"] for row in operations.listed(Filter(key="key-1"), 10, ids[0])] == ids[1:]
    assert [row["id"] for row in operations.listed(Filter(State.DEAD, key="key-1"), 10)] == ids[1:]
    assert operations.listed(Filter(key="key-2"), 10) == []
