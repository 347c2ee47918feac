"""The lifecycle's tables agree with each other, with everything derived from them, and with the README."""

import re
from pathlib import Path

import pytest

from outbox import lifecycle
from outbox.lifecycle import INITIAL, TRANSITIONS, VERDICTS, Move, State, Verdict, after, sources_of, target_of
from outbox.schema import outbox

README = Path(__file__).parents[2] / "README.md"
PAIRS = [(state, move) for state in State for move in Move]


@pytest.mark.parametrize(("state", "move"), PAIRS, ids=lambda it: it.value)
def test_sources_and_targets_say_what_the_table_says(state: State, move: Move) -> None:
    # Given any pair / When the table is asked
    to = after(state, move)
    # Then what is derived from it agrees
    assert (to is not None) == (state in sources_of(move))
    assert to in (None, target_of(move))
    assert to is not state


def test_every_state_is_reached_and_every_move_is_used() -> None:
    assert {INITIAL, *TRANSITIONS.values()} == set(State)
    assert {move for _, move in TRANSITIONS} == set(Move)


def test_every_state_has_a_verdict_and_endings_never_commit() -> None:
    assert set(VERDICTS) == set(State)
    assert {VERDICTS[state] for state in lifecycle.endings()} == {Verdict.ROLLBACK}
    assert {VERDICTS[state] for state in lifecycle.open_states()} == {Verdict.COMMIT}


def test_states_are_open_or_ended_and_nothing_leaves_delivered() -> None:
    assert {*lifecycle.open_states(), *lifecycle.endings()} == set(State)
    assert not set(lifecycle.open_states()) & set(lifecycle.endings())
    assert [move for move in Move if after(State.DELIVERED, move)] == []


def test_retention_deletes_ended_rows_but_never_a_dead_one() -> None:
    assert {*lifecycle.expiring(), State.DEAD} == set(lifecycle.endings())
    assert State.DEAD not in lifecycle.expiring()


def test_a_committed_row_is_never_cancelled() -> None:
    # A COMMIT may be on its way: nothing but the holder of the commit lease may end such a row otherwise.
    assert after(State.COMMITTED, Move.CANCEL) is None
    assert after(State.COMMITTED, Move.BURY) is None


def test_the_tables_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.DELIVERED, Move.CANCEL] = State.CANCELLED  # type: ignore[index]


def test_states_fit_their_column() -> None:
    assert max(map(len, State)) <= getattr(outbox.c.state.type, "length", 0)


def test_the_module_explains_every_state() -> None:
    assert lifecycle.__doc__ is not None
    assert re.findall(r"^``(\w+)``$", lifecycle.__doc__, re.MULTILINE) == [state.value for state in State]


def test_the_diagram_shows_every_move_once() -> None:
    lines = lifecycle.diagram().splitlines()
    assert len(lines) == 2 + len(TRANSITIONS) + len(lifecycle.expiring())
    assert len(set(lines)) == len(lines)


def test_the_readme_shows_the_diagram_of_the_code() -> None:
    # Given the README's block between the two markers
    blocks = re.findall(
        r"<!-- lifecycle -->\n```mermaid\n(.*?)\n```\n<!-- /lifecycle -->", README.read_text(), re.DOTALL
    )
    # When it is compared with the tables / Then it shows exactly them
    assert blocks == [lifecycle.diagram()]
