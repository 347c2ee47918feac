"""The protocol holds in every reachable state of small bounds, and every broken variant of it is caught."""

from functools import cache

import pytest

from outbox.lifecycle import State
from tests.model.explore import Report, explore
from tests.model.properties import PROPERTIES
from tests.model.ranges import SMALL
from tests.model.variants import END, VARIANTS
from tests.model.world import Phase

#: An exploration runs the model, hardly the product, and takes twice as long under coverage.
pytestmark = pytest.mark.no_cover


@cache
def explored(name: str) -> Report:
    """One exploration for all tests that look at it."""
    return explore(SMALL[name].bounds, check_ends=SMALL[name].ends)


@pytest.mark.parametrize("name", SMALL)
def test_every_property_holds_in_every_reachable_state(name: str) -> None:
    # Given the protocol as built, When everything within the bounds is explored
    report = explored(name)
    print(f"{name}: {report.states} states, {report.steps} steps, depth {report.depth}")
    # Then nothing is broken, and the exploration went as far as it should
    assert report.counterexample is None, str(report.counterexample)
    assert report.states >= SMALL[name].states
    assert report.ends[State.DELIVERED] > 0


def test_nothing_is_left_unexplored() -> None:
    # Given all explorations, When their worlds are put together
    reports = [explored(name) for name in SMALL]
    # Then every step of every actor was taken, and every ending was reached
    assert {phase for report in reports for phase in report.phases} == set(Phase)
    assert {state for report in reports for state in report.ends} == {"delivered", "cancelled", "dead", "None"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_protocol_with_a_part_left_out_is_caught(name: str) -> None:
    # Given a broken variant, When it is explored for the property that the part is there for
    variant = VARIANTS[name]
    wanted = {broken: PROPERTIES[broken] for broken in PROPERTIES if broken == variant.broken}
    report = explore(variant.bounds, variant.rules, wanted, check_ends=variant.broken == END)
    # Then there is a way into trouble, told step by step
    assert report.counterexample is not None, f"{name} went unnoticed in {report.states} states"
    print(f"{name}: {report.counterexample}")
    assert "claims" in report.counterexample.steps[0]
