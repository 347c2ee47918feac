"""Each finding about the rows: absent where all is well, present where one thing is changed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest

from outbox.doctor.findings import Level
from outbox.doctor.row_checks import of_groups, of_heartbeats, of_origin, of_rows
from outbox.lifecycle import State
from outbox.store.examined_rows import RowFacts
from tests.unit.doctor.cases import not_ok

QUIET: Final = RowFacts(
    rows=dict.fromkeys(State, 0) | {State.DELIVERED: 7},
    oldest_due=0.4,
    oldest_unsettled=0.0,
    heartbeats={"checkback/a": 3.0},
    estimated=frozenset(),
    old=0,
    unsettled_long=0,
    dead={},
    unsettled={},
)
NO_LISTENER: Final = replace(QUIET, heartbeats={"checkback/a": 31.0})


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (QUIET, {}),
        (replace(QUIET, oldest_due=60.1), {"rows-late": Level.WARNING}),
        (replace(QUIET, old=1), {"rows-old": Level.WARNING}),
        (replace(QUIET, unsettled_long=1, oldest_unsettled=900.0), {"rows-unsettled": Level.WARNING}),
        (replace(QUIET, rows={**QUIET.rows, State.DEAD: 1}), {"rows-dead": Level.WARNING}),
    ],
    ids=str,
)
def test_rows_are_judged(facts: RowFacts, found: Mapping[str, Level]) -> None:
    assert not_ok(of_rows(facts)) == found


def test_dead_rows_are_told_by_reason() -> None:
    # Given dead rows with a long reason of several lines, and others
    facts = replace(QUIET, rows={**QUIET.rows, State.DEAD: 5}, dead={"code 13:\n" + "x" * 200: 3, "outcome unknown": 2})
    (dead,) = [finding for finding in of_rows(facts) if finding.id == "rows-dead"]
    # Then each reason is told with its number, on one line, cut
    assert dead.seen.startswith("5: 3 × code 13: xxx")
    assert dead.seen.endswith("x…; 2 × outcome unknown")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (QUIET, {}),
        (NO_LISTENER, {"listener-heartbeat": Level.NOTE}),
        (replace(NO_LISTENER, heartbeats={}), {"listener-heartbeat": Level.NOTE}),
        (replace(NO_LISTENER, rows={**QUIET.rows, State.PENDING: 1}), {"listener-heartbeat": Level.WARNING}),
        (replace(NO_LISTENER, rows={**QUIET.rows, State.COMMITTED: 1}), {"listener-heartbeat": Level.WARNING}),
    ],
    ids=str,
)
def test_a_listener_must_be_heard_where_rows_are_open(facts: RowFacts, found: Mapping[str, Level]) -> None:
    assert not_ok(of_heartbeats(facts, gap=30)) == found


def test_rows_of_another_producer_group_are_told() -> None:
    assert not_ok(of_groups({"outbox-orders": 3}, "outbox-orders")) == {}
    (other,) = of_groups({"outbox-orders": 3, "outbox-old": 2}, "outbox-orders")
    assert (other.id, other.level, other.seen) == (
        "rows-other-group",
        Level.NOTE,
        "2 of outbox-old beside outbox-orders",
    )


@pytest.mark.parametrize(
    ("database_ids", "found"),
    [(["a"], {}), ([], {"origin": Level.PROBLEM}), (["a", "b"], {"origin": Level.PROBLEM})],
)
def test_a_database_has_one_identity(database_ids: Sequence[str], found: Mapping[str, Level]) -> None:
    assert not_ok(of_origin("orders", database_ids)) == found
