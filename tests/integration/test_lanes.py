"""Lanes on real databases: one row after another, whoever ends it, and nobody waits for a business transaction."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from outbox import InvalidMessage, Outbox
from outbox.identity import fresh_token
from outbox.lifecycle import Move, State, sources_of
from outbox.schema import outbox
from outbox.store.attempt import Attempt
from outbox.store.change import Ending
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases, Holding
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Published, Refusal, Return, Winner
from outbox.store.lane_sweep import LaneSweep
from outbox.store.lanes import Lanes
from outbox.store.operations import Operations
from tests.integration.plans import analyze, planned
from tests.integration.producers import KINDS, Service, application
from tests.integration.rows import LONG_LEASE, added, column, force, half_of, producer, state_of

MIB16 = 16 << 20
LANE = "order-42"
DEADLINE = 60


def claimed(database: Database, limit: int = 10) -> list[int]:
    return [it.row_id for it in attempts(database, limit)]


def attempts(database: Database, limit: int = 10) -> list[Attempt]:
    return Claims(database).claim(limit, MIB16, lease=LONG_LEASE)


def decided(database: Database, attempt: Attempt) -> Holding:
    """The holding of a row that has just chosen its half."""
    half = half_of(attempt.topic)
    assert Decisions(database).decide(Outcomes(winners=[Winner(attempt, half)]), 15) == {attempt.row_id}
    force(database, attempt.row_id, available_at=utc_after(-1))
    holding = CommitLeases(database).take_over(attempt.row_id, half.half_id, 15)
    assert holding is not None
    return holding


def deliver(database: Database, attempt: Attempt) -> None:
    holding = decided(database, attempt)
    assert CommitLeases(database).settle([(holding.row_id, holding.half.half_id)]) == {attempt.row_id}


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """The statements that the engine runs meanwhile."""
    seen: list[str] = []

    def see(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", see)
    yield seen
    event.remove(database.engine, "before_cursor_execute", see)


# Adding


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_transaction_adds_to_a_lane(kind: str, migrated_url: str, database: Database) -> None:
    # Given a service; When it adds to a lane; Then the row stands in the lane of its topic
    service = Service(migrated_url, kind)
    with service.transaction() as transaction:
        row_id = transaction.add(lane=LANE)
    service.close()
    assert (column(database, row_id, "lane"), column(database, row_id, "open_lane")) == (LANE, f"payments/{LANE}")
    assert column(database, row_id, "parked") is False


def test_a_lane_that_no_order_can_be_kept_in_is_refused(database: Database) -> None:
    plain = Outbox(origin="tests", plain_topics={"logs"})
    with database.transaction() as connection:
        with pytest.raises(InvalidMessage, match=r"lane: .*blank"):
            producer.add(connection, topic="payments", key="a", payload={}, lane=" ")
        with pytest.raises(InvalidMessage, match=r"lane: .*256 bytes"):
            producer.add(connection, topic="payments", key="a", payload={}, lane="x" * 256)
        with pytest.raises(InvalidMessage, match=r"lane: .*order: use not_before"):
            plain.add(connection, topic="logs", key="a", payload={}, lane=LANE, delay_level=3)
    assert claimed(database) == []


def test_producers_of_one_lane_wait_for_each_other(database: Database, migrated_url: str) -> None:
    # Given a transaction of a service that has added to a lane (SQLite has one writer at a time anyway)
    if database.dialect == "sqlite":
        assert added(database, lane=LANE)
        return
    service, others = application(migrated_url), Outbox(origin="tests", lane_lock=False)

    def add(outbox: Outbox = producer, topic: str = "payments", lane: str = LANE) -> int:
        """Another transaction."""
        with service.begin() as connection:
            return outbox.add(connection, topic=topic, key=fresh_token(), payload={}, lane=lane)

    with ThreadPoolExecutor(1) as threads, service.connect() as first:
        head = producer.add(first, topic="payments", key="head", payload={}, lane=LANE)
        # When others add to it, and to other lanes
        elsewhere, other_topic, unlocked = add(lane="order-43"), add(topic="refunds"), add(others)
        waiting = threads.submit(add)
        # Then only who adds to the same lane of the same topic waits, unless it was told not to
        assert not wait_for(waiting)
        first.commit()
        assert head < elsewhere < other_topic < unlocked < waiting.result(DEADLINE)
    service.dispose()


def wait_for(future: Future[Any]) -> bool:
    """Whether the future is done within the time that a statement needs to be stuck."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    return done.wait(0.3)


# Parking


def test_only_the_head_of_a_lane_is_claimed_and_the_others_are_met_once(database: Database) -> None:
    # Given two lanes, and rows without one
    first = added(database, 3, lane="a")
    second = added(database, 3, lane="b")
    anywhere = added(database, 2)
    # When all that is due is claimed; Then that is the heads, and what has no lane
    assert claimed(database) == [first[0], second[0], *anywhere]
    # And the others are out of the claim index, without a trace of the attempt
    for row_id in [*first[1:], *second[1:]]:
        found = [column(database, row_id, name) for name in ("parked", "token", "lease_id", "attempts")]
        assert found == [True, None, None, 0]
        assert column(database, row_id, "available_at") == column(database, row_id, "created_at")
    with counted(database) as statements:
        assert claimed(database) == []
    assert not [it for it in statements if "outbox_lane" in it or "open_lane =" in it]


def test_a_claim_goes_on_until_its_pass_is_full(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a lane of more rows than a pass has, and others behind
    monkeypatch.setattr("outbox.store.claims._LONG", DEADLINE)
    head, *_ = added(database, 12, lane="a")
    others = added(database, 4)
    # When a pass is claimed; Then it is full all the same
    assert claimed(database, 5) == [head, *others]


def test_a_head_does_not_wait_until_everything_behind_is_parked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given parking that takes long
    monkeypatch.setattr("outbox.store.claims._LONG", -1.0)
    head, *_ = added(database, 12, lane="a")
    others = added(database, 4)
    # When a pass is claimed; Then the head is shipped at once, and the next claim goes on
    assert claimed(database, 5) == [head]
    assert claimed(database, 5) == others


def test_heads_are_shipped_although_their_followers_cannot_be_parked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a database that does not take the parking, such as by a deadlock
    def deadlock(*_: object) -> dict[int, str]:
        raise OperationalError("UPDATE", {}, Exception("deadlock"))

    head, *followers = added(database, 3, lane="a")
    (other,) = added(database)
    with monkeypatch.context() as patched:
        patched.setattr(Lanes, "park", deadlock)
        # When a pass is claimed; Then it has the heads, and the followers are not parked
        assert claimed(database) == [head, other]
    assert not any(column(database, row_id, "parked") for row_id in followers)
    # And once their leases are over, they are
    for row_id in followers:
        force(database, row_id, available_at=utc_after(-1))
    assert claimed(database) == []
    assert all(column(database, row_id, "parked") for row_id in followers)


def test_a_lane_belongs_to_its_topic(database: Database) -> None:
    heads = [added(database, 2, topic=topic, lane=LANE)[0] for topic in ("payments", "refunds")]
    assert claimed(database) == heads


def test_lanes_whose_names_differ_in_a_blank_or_an_accent_are_told_apart(database: Database) -> None:
    # Given rows of lanes whose names some collations call equal, one among the others
    names = ["x ", "x", "X", "x ", "x", "é", "e", "É", "e\u0301", "é ", "é", "e"]
    rows = [added(database, lane=name)[0] for name in names]
    heads = [row_id for place, row_id in enumerate(rows) if names[place] not in names[:place]]
    # When they are claimed; Then the head of each is shipped, and nothing else
    assert [it.row_id for it in Claims(database).claim(100, 1 << 20, lease=LONG_LEASE)] == heads


def test_a_lane_goes_on_in_order_of_its_ids(database: Database) -> None:
    # Given a lane; When its rows are published one after another
    ids = added(database, 4, lane=LANE)
    shipped = []
    while taken := attempts(database):
        (attempt,) = taken
        shipped.append(attempt.row_id)
        deliver(database, attempt)
    # Then that was their order
    assert shipped == ids


def test_a_row_that_waits_for_its_time_holds_those_behind_it(database: Database) -> None:
    (later,) = added(database, lane=LANE, delay=timedelta(hours=1))
    (behind,) = added(database, lane=LANE)
    assert claimed(database) == []
    assert column(database, behind, "parked") is True
    force(database, later, not_before=None, available_at=utc_after(-1))
    assert claimed(database) == [later]


def _refused(attempt: Attempt) -> Outcomes:
    return Outcomes(refusals=[Refusal(attempt, "refused", LONG_LEASE)])


def _given_back(attempt: Attempt) -> Outcomes:
    return Outcomes(returns=[Return(attempt, LONG_LEASE, adoptable=True)])


@pytest.mark.parametrize("outcome", [_refused, _given_back])
def test_a_head_that_fails_for_now_keeps_its_lane(database: Database, outcome: Callable[[Attempt], Outcomes]) -> None:
    # Given the head of a lane under way
    head, follower = added(database, 2, lane=LANE)
    (attempt,) = attempts(database)
    # When it fails for now; Then nothing of its lane is claimed before it
    Decisions(database).decide(outcome(attempt), 15)
    assert claimed(database) == []
    force(database, head, available_at=utc_after(-1))
    assert claimed(database) == [head]
    assert column(database, follower, "parked") is True


def test_a_reopened_head_comes_before_its_followers(database: Database) -> None:
    head, follower = added(database, 2, lane=LANE)
    (attempt,) = attempts(database)
    assert CommitLeases(database).reopen(decided(database, attempt), "half lost")
    assert claimed(database) == [head]
    assert column(database, follower, "parked") is True


# Endings


def _settle(database: Database, attempt: Attempt) -> None:
    deliver(database, attempt)


def _presume(database: Database, attempt: Attempt) -> None:
    assert CommitLeases(database).presume(decided(database, attempt))


def _publish(database: Database, attempt: Attempt) -> None:
    force(database, attempt.row_id, mode="plain")
    Decisions(database).decide(Outcomes(published=[Published(attempt, "AB" * 16)]), 15)


def _cancel(database: Database, attempt: Attempt) -> None:
    assert Operations(database).cancel([attempt.row_id], "no longer wanted") == [attempt.row_id]


def _bury(database: Database, attempt: Attempt) -> None:
    Decisions(database, lambda _: False).decide(Outcomes(refusals=[Refusal(attempt, "refused", None)]), 15)


def _give_up(database: Database, attempt: Attempt) -> None:
    assert CommitLeases(database, lambda _: False).give_up(decided(database, attempt), "outcome unknown")


@pytest.mark.parametrize("end", [_settle, _presume, _publish, _cancel, _bury, _give_up])
def test_whoever_ends_the_head_lets_the_lane_go_on(database: Database, end: Callable[..., None]) -> None:
    # Given two lanes whose followers are parked
    head, follower, last = added(database, 3, lane=LANE)
    other = added(database, 2, lane="other")
    mine, _ = attempts(database)
    # When the head of one ends
    end(database, mine)
    # Then the next one of that lane may be claimed, and nothing else
    assert column(database, head, "open_lane") is None
    assert [column(database, row_id, "parked") for row_id in (follower, last, other[1])] == [False, True, True]
    assert claimed(database) == [follower]


@pytest.mark.parametrize("bury", ["bury", "give up"])
@pytest.mark.parametrize("decide", ["requeue", "release"])
def test_a_dead_head_holds_its_lane_until_an_operator_decides(database: Database, bury: str, decide: str) -> None:
    # Given a lane whose head died
    head, follower = added(database, 2, lane=LANE)
    (attempt,) = attempts(database)
    if bury == "bury":
        Decisions(database).decide(Outcomes(refusals=[Refusal(attempt, "refused", None)]), 15)
    else:
        assert CommitLeases(database).give_up(decided(database, attempt), "outcome unknown")
    # When nothing is decided, nothing of the lane is published, and a new row waits as well
    assert state_of(database, head) is State.DEAD
    (new,) = added(database, lane=LANE)
    assert claimed(database) == []
    assert column(database, new, "parked") is True
    # When the operator decides; Then the head comes first, or the lane goes on without it
    operations = Operations(database)
    if decide == "requeue":
        assert operations.requeue([head]) == [head]
        assert claimed(database) == [head]
    else:
        assert operations.release([head]) == [head]
        assert (operations.release([head]), state_of(database, head)) == ([], State.DEAD)
        assert claimed(database) == [follower]


def test_a_row_comes_back_to_a_lane_that_went_on_only_out_of_order(database: Database) -> None:
    # Given a row that left its lane
    head, follower = added(database, 2, lane=LANE)
    operations = Operations(database)
    operations.cancel([head], "a mistake")
    # When it is requeued; Then only with a word
    assert operations.requeue([head]) == []
    assert operations.requeue([head], out_of_order=True) == [head]
    assert claimed(database) == [head]
    assert column(database, follower, "parked") is True


def test_a_cancelled_follower_leaves_no_gap(database: Database) -> None:
    head, follower, last = added(database, 3, lane=LANE)
    (attempt,) = attempts(database)
    Operations(database).cancel([follower], "no longer wanted")
    assert claimed(database) == []
    deliver(database, attempt)
    assert (column(database, follower, "parked"), claimed(database)) == (False, [last])
    assert state_of(database, head) is State.DELIVERED


# Races


def _ending(database: Database) -> Ending:
    return Ending(
        database.dialect,
        sources_of(Move.CANCEL),
        compare=lambda _: sa.true(),
        values=lambda _: {"state": State.CANCELLED},
    )


def test_a_claim_and_the_end_of_the_head_never_miss_each_other(database: Database) -> None:
    # Given a head whose end is not committed yet, and a follower that nobody has met
    if database.dialect == "sqlite":
        assert database.engine.dialect.name == "sqlite"  # one writer at a time: nothing can interleave
        return
    (head,) = added(database, lane=LANE)
    assert claimed(database) == [head]
    (follower,) = added(database, lane=LANE)
    lanes, ending = Lanes(database.dialect), _ending(database)
    with ThreadPoolExecutor(1) as threads:
        # When a claim meets the follower before the end looks for it
        with database.transaction() as connection:
            left = ending.end(connection, [{"id": head}])
            assert claimed(database) == []
            assert lanes.go_on(connection, left.lanes) == [follower]
        # Then the end has found it
        (again,) = attempts(database)
        (last,) = added(database, lane=LANE)
        # And when the end has looked before the claim does, the claim waits for it, and takes the row
        with database.transaction() as connection:
            left = ending.end(connection, [{"id": follower}])
            assert lanes.go_on(connection, left.lanes) == []
            claiming = threads.submit(claimed, database)
            assert not wait_for(claiming)
        assert claiming.result(DEADLINE) == [last]
    assert again.row_id == follower


def test_the_end_of_a_head_waits_for_no_business_transaction(database: Database) -> None:
    # Given a lane that an open business transaction adds to, and whose next row another one has locked
    if database.dialect == "sqlite":
        assert database.engine.dialect.name == "sqlite"  # one writer at a time: everybody waits, shortly
        return
    head, follower = added(database, 2, lane=LANE)
    (attempt,) = attempts(database)
    with database.engine.begin() as business, database.engine.begin() as other:
        producer.add(business, topic="payments", key="new", payload={}, lane=LANE)
        other.execute(sa.select(outbox.c.id).where(outbox.c.id == follower).with_for_update())
        # When the head is settled; Then at once
        deliver(database, attempt)
        assert state_of(database, head) is State.DELIVERED
    # And the lane is found by the sweep
    assert claimed(database) == []
    assert LaneSweep(database).run() == [follower]
    assert claimed(database) == [follower]


# The sweep


def test_the_sweep_finds_every_stuck_lane_and_no_other(database: Database) -> None:
    # Given many lanes under way, and some whose head was deleted past the toolkit
    lanes = [f"lane-{number:02}" for number in range(12)]
    rows = {lane: added(database, 3, lane=lane) for lane in lanes}
    assert claimed(database, 50) == [ids[0] for ids in rows.values()]
    stuck = [rows[lane] for lane in lanes[3:9]]
    with database.transaction() as connection:
        connection.execute(outbox.delete().where(outbox.c.id.in_([ids[0] for ids in stuck])))
    # When the sweep makes its tour, a few lanes at a time
    sweep = LaneSweep(database, lanes=5)
    woken = [sweep.run() for _ in range(6)]
    # Then each of them goes on, once, and the tour begins anew
    assert [len(found) for found in woken] == [2, 4, 0, 0, 0, 0]
    assert sorted(row_id for found in woken for row_id in found) == [ids[1] for ids in stuck]
    assert claimed(database, 50) == [ids[1] for ids in stuck]


# What it costs


def test_rows_without_a_lane_cost_no_statement(database: Database) -> None:
    # Given a pass of rows without a lane, and a pass of heads
    def statements_of(lane: str | None) -> int:
        (row_id,) = added(database, lane=lane)
        force(database, row_id, mode="plain")
        claims, decisions = Claims(database), Decisions(database)
        with counted(database) as statements:
            (attempt,) = claims.claim(10, MIB16, lease=LONG_LEASE)
            decisions.decide(Outcomes(published=[Published(attempt, "AB" * 16)]), 15)
        return len(statements)

    # When both are published; Then the first needs what it always needed, and the second two looks and a lock more
    without, more = {"postgresql": (3, 3), "sqlite": (6, 2), "mysql": (5, 3)}[database.dialect]
    assert statements_of(None) == without
    assert statements_of(LANE) == without + more


def test_what_follows_in_a_lane_is_found_in_the_index_of_lanes(database: Database) -> None:
    # Given a lane with a decided head, in which, as the statistics have it, every row stands, and others behind it
    head = added(database, lane="a")[0]
    added(database, 300, lane="a")
    analyze(database)
    added(database, 300)
    force(database, head, state=State.COMMITTED)
    # When a claim meets it, and looks what else there is to park
    with planned(database) as plans:
        claimed(database, 100)
    # Then rows of no lane are not read for it
    looks = {how for text, how in plans.reads if text.startswith("SELECT outbox.id FROM outbox ")}
    assert looks == {"ix_outbox_open_lane"}


@pytest.mark.parametrize("statistics", ["stale", "of one lane", "fresh"])
def test_the_head_of_a_lane_is_one_entry_of_one_index(database: Database, statistics: str) -> None:
    # Given a lane that many stand in, and many that stand in none
    heads = [added(database, 300, lane="a")[0]]
    if statistics == "of one lane":
        analyze(database)
    heads += [added(database, 300, lane="b")[0]]
    added(database, 300)
    assert set(claimed(database, 1000)) >= set(heads)
    if statistics == "fresh":
        analyze(database)
    # When rows of lanes are claimed, ended and swept
    with planned(database) as plans:
        added(database, lane="a")
        claimed(database)
        Operations(database).cancel(heads, "no longer wanted")
        assert len(attempts(database)) == 2
        assert LaneSweep(database).run() == []
    # Then heads are looked up, and lanes toured, in the index of the lanes alone
    words = ("SELECT given.lane", "SELECT unhex(given.lane)", "WITH RECURSIVE tour", "SELECT outbox.open_lane")
    looks = [(text, how) for text, how in plans.reads if text.startswith(words)]
    assert {how for _, how in looks} == {"ix_outbox_open_lane"}
    assert len({text for text, _ in looks}) == 2
    assert not {text for text, _ in looks} & set(plans.sorts)
