"""Lanes keep their order and forget no row in every reachable state, and each part left out is missed."""

import pytest

from tests.model.lane_exploration import VARIANTS, explore
from tests.model.lanes import Bounds

#: An exploration runs the model, hardly the product, and takes twice as long under coverage.
pytestmark = pytest.mark.no_cover


#: The least that must be explored, so that a model that stands still is noticed.
BOUNDS = {
    "a lane": (Bounds(), 17_000),
    "two claims": (Bounds(producers=1, claims=2, cancels=0), 7_000),  # with all the others: 155,095 states, a minute
    "two endings": (Bounds(endings=2), 22_000),
    "cancels that are rolled back": (Bounds(rollbacks=True), 17_000),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_no_row_is_overtaken_or_forgotten(name: str) -> None:
    # Given the protocol as built; When every interleaving is explored; Then nothing goes wrong in any
    bounds, least = BOUNDS[name]
    report = explore(bounds)
    print(f"{name}: {report.states} states")
    assert report.trouble == []
    assert report.states >= least


@pytest.mark.parametrize("name", VARIANTS)
def test_each_part_of_the_protocol_is_missed(name: str) -> None:
    # Given a part left out; When every interleaving is explored; Then one of them is trouble
    report = explore(Bounds(rollbacks=name == "no sweep"), VARIANTS[name])
    assert report.trouble, f"{name} went unnoticed in {report.states} states"
    print(f"{name}: {'; '.join(report.trouble)}")
