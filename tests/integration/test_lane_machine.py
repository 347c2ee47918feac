"""Random histories of lanes on the real store: no row is overtaken, and none is forgotten, whatever becomes of it."""

from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event

from outbox import Outbox
from outbox.brokers.base import Half
from outbox.identity import fresh_token
from outbox.lifecycle import State, endings, open_states
from outbox.message import Mode
from outbox.schema import outbox
from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Published, Refusal, Return, Winner
from outbox.store.lane_sweep import LaneSweep
from outbox.store.operations import Operations
from outbox.store.retention import Periods, Retention
from tests.integration.rows import half_of

BYTES = 16 << 20
#: Topic and lane; rows of "logs" are plain, and the dead of "free" do not hold their lanes.
LANES = [("payments", "a"), ("payments", "b"), ("logs", "a"), ("free", "a"), ("payments", None)]
#: How the transport answers for an attempt.
ANSWERS = st.sampled_from(["stored", "stored", "stored", "refused", "buried", "unknown", "away"])
#: Steps of one history, and histories, by back end.
HISTORIES = {"sqlite": 20, "postgresql": 8, "mysql": 8, "mariadb": 8}
STEPS = 40

producer = Outbox(origin="tests", plain_topics={"logs"})


@dataclass(slots=True)
class Row:
    """A row as the model knows it."""

    topic: str
    lane: str | None
    state: State = State.PENDING
    #: Whether it stands in its lane.
    stands: bool = True
    #: Requeued into a lane that had gone on: it has no order any more.
    out_of_order: bool = False


class LaneMachine(RuleBasedStateMachine):
    """One store; the transport is what the rules say; time passes row by row."""

    database: Database
    claims: Claims
    operations: Operations
    decisions: Decisions
    leases: CommitLeases
    retention: Retention
    sweep: LaneSweep

    @initialize()
    def empty(self) -> None:
        with self.database.transaction() as connection:
            connection.execute(outbox.delete())
        self.rows: dict[int, Row] = {}
        self.attempts: list[Attempt] = []
        self.halves: dict[int, Half] = {}

    @rule(place=st.sampled_from(LANES), count=st.integers(1, 3))
    def add(self, place: tuple[str, str | None], count: int) -> None:
        topic, lane = place
        with self.database.transaction() as connection:
            for _ in range(count):
                row_id = producer.add(connection, topic=topic, key=fresh_token(), payload={}, lane=lane)
                self.rows[row_id] = Row(topic, lane, stands=lane is not None)

    @rule(limit=st.integers(1, 6))
    def claim(self, limit: int) -> None:
        taken = self.claims.claim(limit, BYTES, lease=60)
        for attempt in taken:
            assert self.rows[attempt.row_id].state is State.PENDING
            assert self.is_head(attempt.row_id), "a row was claimed behind its head"
        self.attempts += taken

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), answer=ANSWERS)
    def answer(self, data: st.DataObject, answer: str) -> None:
        """The end of an attempt, which may have lost its lease long ago."""
        attempt = self.attempts.pop(data.draw(st.integers(0, len(self.attempts) - 1)))
        half, plain = half_of(attempt.topic), attempt.mode is Mode.PLAIN
        outcomes = {
            "stored": Outcomes(published=[Published(attempt, half.half_id)])
            if plain
            else Outcomes(winners=[Winner(attempt, half)]),
            "refused": Outcomes(refusals=[Refusal(attempt, "no", 60)]),
            "buried": Outcomes(refusals=[Refusal(attempt, "no", None)]),
            "unknown": Outcomes(returns=[Return(attempt, 60, adoptable=True)]),
            "away": Outcomes(returns=[Return(attempt, 60)]),
        }
        committed = self.decisions.decide(outcomes[answer], 60)
        if attempt.row_id in committed:
            self.halves[attempt.row_id] = half
        self.note(attempt.row_id)

    @precondition(lambda self: self.halves)
    @rule(data=st.data(), how=st.sampled_from(["settle", "settle", "settle", "presume", "reopen", "give up"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        """Somebody learns what became of a committed half, or takes it over and decides."""
        row_id = data.draw(st.sampled_from(sorted(self.halves)))
        half = self.halves.pop(row_id)
        if how == "settle":
            self.leases.settle([(row_id, half.half_id)])
        else:
            self.past(row_id)
            holding = self.leases.take_over(row_id, half.half_id, 60)
            if holding is not None:
                ends: dict[str, Any] = {"reopen": self.leases.reopen, "give up": self.leases.give_up}
                ends[how](holding, "outcome unknown") if how in ends else self.leases.presume(holding)
        self.note(row_id)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        """The broker asks about the half of an attempt that ran out."""
        attempt = data.draw(st.sampled_from(self.attempts))
        self.past(attempt.row_id)
        half = half_of(attempt.topic)
        if self.leases.adopt(attempt.row_id, attempt.token, half, 60) is not None:
            self.halves[attempt.row_id] = half
        self.note(attempt.row_id)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        """A back-off is over, or the lease of somebody who died."""
        self.past(data.draw(st.sampled_from(sorted(self.rows))))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row_id = data.draw(st.sampled_from(sorted(self.rows)))
        if not self.operations.release([row_id]):
            self.operations.cancel([row_id], "no longer wanted")
        self.note(row_id)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), out_of_order=st.booleans())
    def requeue(self, data: st.DataObject, out_of_order: bool) -> None:
        row_id = data.draw(st.sampled_from(sorted(self.rows)))
        row = self.rows[row_id]
        if self.operations.requeue([row_id], out_of_order=out_of_order):
            assert row.state in endings()
            assert row.stands or row.lane is None or out_of_order
            row.out_of_order |= row.lane is not None and not row.stands
            self.past(row_id)
        self.note(row_id)

    @rule()
    def purge(self) -> None:
        list(self.retention.run(Periods(1e-6, 1e-6), 100))
        kept = self.stored()
        for row_id in self.rows.keys() - kept.keys():
            row = self.rows.pop(row_id)
            assert row.state in endings(), "an open row was deleted"
            assert not row.stands, "a row that holds its lane was deleted"

    @invariant()
    def no_row_is_forgotten(self) -> None:
        """Every row is as the model knows it, and the head of each lane can be claimed, or is under way."""
        for row_id, (state, open_lane, parked) in self.stored().items():
            row = self.rows[row_id]
            assert (state, open_lane is not None) == (row.state, row.stands)
            assert state not in open_states() or row.stands == (row.lane is not None)
            assert not parked or not self.is_head(row_id), f"row {row_id} is parked and nobody stands before it"

    def teardown(self) -> None:
        """And the sweep finds nothing to do."""
        assert self.sweep.run() == []

    def note(self, row_id: int) -> None:
        """Follows the store, and asserts the order of what becomes visible."""
        row = self.rows.get(row_id)
        if row is None:  # purged
            return
        state, open_lane, _ = self.stored()[row_id]
        if state is State.DELIVERED and row.state is not state and not row.out_of_order:
            assert not [it for it in self.standing_before(row_id) if not self.rows[it].out_of_order], "overtaken"
        row.state, row.stands = state, open_lane is not None

    def is_head(self, row_id: int) -> bool:
        return not self.standing_before(row_id)

    def standing_before(self, row_id: int) -> list[int]:
        row = self.rows[row_id]
        lane = (row.topic, row.lane)
        return [
            number
            for number, other in self.rows.items()
            if row.lane is not None and number < row_id and other.stands and (other.topic, other.lane) == lane
        ]

    def past(self, row_id: int) -> None:
        with self.database.transaction() as connection:
            connection.execute(outbox.update().where(outbox.c.id == row_id).values(available_at=utc_after(-1)))

    def stored(self) -> dict[int, tuple[State, str | None, bool]]:
        columns = (outbox.c.id, outbox.c.state, outbox.c.open_lane, outbox.c.parked)
        with self.database.look() as connection:
            return {it.id: (State(it.state), it.open_lane, it.parked) for it in connection.execute(sa.select(*columns))}


@pytest.mark.timeout(600)
def test_no_history_overtakes_or_forgets_a_row(database: Database) -> None:
    # Given random histories; When they run on the store; Then lanes keep their order, and every row can still be sent
    if database.dialect == "sqlite":  # no crash of the machine is part of these histories
        event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF").close())
        database.engine.dispose()
    store = {
        "database": database,
        "claims": Claims(database),
        "operations": Operations(database),
        "decisions": Decisions(database, lambda topic: topic != "free"),
        "leases": CommitLeases(database, lambda topic: topic != "free"),
        "retention": Retention(database),
        "sweep": LaneSweep(database),
    }
    machine = type("Machine", (LaneMachine,), store)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=HISTORIES[database.dialect],
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
