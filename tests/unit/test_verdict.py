"""The check-back's table, line by line, and the steps of the holder of a commit lease."""

import itertools

import pytest

from outbox.lifecycle import State
from outbox.verdict import (
    Confirmation,
    HalfView,
    Next,
    RowView,
    Sighting,
    Step,
    after_commit,
    after_gone,
    after_look_up,
    verdict,
)

HALF = HalfView(token="t1", half_id="h1")

OWN = ("t1", "h1")
OTHER_TOKEN = ("t2", "h1")
OTHER_HALF = ("t1", "h2")
NO_TOKEN = (None, "h1")
NO_HALF = ("t1", None)
NOTHING = (None, None)
NAMES = [OWN, OTHER_TOKEN, OTHER_HALF, NO_TOKEN, NO_HALF, NOTHING]
NAMES_AND_OVER = list(itertools.product(NAMES, [False, True]))


def row(state: State, names: tuple[str | None, str | None], *, over: bool, presumed: bool = False) -> RowView:
    return RowView(state, *names, lease_over=over, presumed=presumed)


def test_without_a_row_nobody_can_tell() -> None:
    assert verdict(None, HALF) is Step.UNKNOWN


@pytest.mark.parametrize("names", [OTHER_TOKEN, NO_TOKEN, NOTHING], ids=str)
@pytest.mark.parametrize("over", [False, True])
def test_a_pending_row_rolls_back_superseded_attempts(names: tuple[str | None, str | None], over: bool) -> None:
    assert verdict(row(State.PENDING, names, over=over), HALF) is Step.ROLLBACK


@pytest.mark.parametrize("names", [OWN, OTHER_HALF, NO_HALF], ids=str)
def test_a_pending_row_adopts_its_attempts_half_once_the_lease_is_over(names: tuple[str | None, str | None]) -> None:
    assert verdict(row(State.PENDING, names, over=False), HALF) is Step.UNKNOWN
    assert verdict(row(State.PENDING, names, over=True), HALF) is Step.ADOPT


@pytest.mark.parametrize("names", [it for it in NAMES if it != OWN], ids=str)
@pytest.mark.parametrize("over", [False, True])
def test_a_committed_row_rolls_back_every_other_half(names: tuple[str | None, str | None], over: bool) -> None:
    assert verdict(row(State.COMMITTED, names, over=over), HALF) is Step.ROLLBACK


def test_a_committed_row_takes_its_own_half_over_once_the_lease_is_over() -> None:
    assert verdict(row(State.COMMITTED, OWN, over=False), HALF) is Step.UNKNOWN
    assert verdict(row(State.COMMITTED, OWN, over=True), HALF) is Step.TAKE_OVER


@pytest.mark.parametrize("state", [State.DELIVERED, State.CANCELLED, State.DEAD])
@pytest.mark.parametrize(("names", "over"), NAMES_AND_OVER, ids=str)
def test_an_ended_row_rolls_back_every_half(state: State, names: tuple[str | None, str | None], over: bool) -> None:
    assert verdict(row(state, names, over=over), HALF) is Step.ROLLBACK


@pytest.mark.parametrize(("names", "over"), NAMES_AND_OVER, ids=str)
def test_a_presumed_delivery_commits_its_own_half_only(names: tuple[str | None, str | None], over: bool) -> None:
    expected = Step.COMMIT if names == OWN else Step.ROLLBACK
    assert verdict(row(State.DELIVERED, names, over=over, presumed=True), HALF) is expected


def test_a_look_up_decides_what_the_new_holder_does() -> None:
    assert after_look_up(Sighting.VISIBLE) is Next.SETTLE
    assert after_look_up(Sighting.ABSENT) is Next.COMMIT
    assert after_look_up(Sighting.CANNOT_TELL) is Next.WAIT
    assert after_look_up(Sighting.EXPIRED) is Next.GIVE_UP


@pytest.mark.parametrize("confirmation", Confirmation)
def test_only_a_confirmed_commit_settles(confirmation: Confirmation) -> None:
    expected = Next.SETTLE if confirmation is Confirmation.CONFIRMED else Next.WAIT
    assert after_commit(confirmation) is expected


@pytest.mark.parametrize("recently", [False, True])
def test_a_half_that_is_gone_is_reopened_only_if_its_absence_proves_something(recently: bool) -> None:
    assert after_gone(Sighting.VISIBLE, decided_recently=recently) is Next.SETTLE
    assert after_gone(Sighting.CANNOT_TELL, decided_recently=recently) is Next.WAIT
    assert after_gone(Sighting.EXPIRED, decided_recently=recently) is Next.GIVE_UP
    expected = Next.REOPEN if recently else Next.GIVE_UP
    assert after_gone(Sighting.ABSENT, decided_recently=recently) is expected
