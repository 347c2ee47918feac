"""The figures that a scrape tells: fresh where that is quick, never waited for where it is not."""

import threading

import pytest
import sqlalchemy as sa

from outbox.cli import figures as tested
from outbox.cli.figures import FreshFigures
from outbox.store.gauges import Figures
from tests.waiting import expect_soon

DEADLINE = 60.0


def figures(oldest: float) -> Figures:
    return Figures({}, oldest, 0.0, {})


def test_figures_are_asked_for_when_somebody_scrapes_and_told_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a database that answers while it is waited for, however busy the machine
    monkeypatch.setattr(tested, "_PATIENCE", DEADLINE)
    clock, asked = [0.0], iter(map(figures, range(10)))
    fresh = FreshFigures(lambda: next(asked), lambda: clock[0])
    # When several look at once; Then they are told the same
    assert [fresh.get(), fresh.get()] == [figures(0), figures(0)]
    # When they are old; Then it is asked again
    clock[0] += 11
    assert fresh.get() == figures(1)


def test_a_database_that_hangs_holds_up_one_scrape_for_a_moment_and_no_other() -> None:
    # Given a database that has answered, and then does not
    clock, hangs, answers = [0.0], threading.Event(), threading.Event()

    def read() -> Figures:
        if hangs.is_set():
            assert answers.wait(DEADLINE)
            raise sa.exc.OperationalError("SELECT 1", {}, ValueError("away"))
        return figures(7)

    fresh = FreshFigures(read, lambda: clock[0])
    expect_soon(lambda: fresh.get() == figures(7), "it has answered", within=DEADLINE)
    hangs.set()
    clock[0] += 11
    # When it is scraped; Then what is known is told while the answer is not there
    assert [fresh.get() for _ in range(100)] == [figures(7)] * 100
    # When the answer is that there is none; Then there are no figures
    answers.set()
    expect_soon(lambda: fresh.get() is None, "the old figures are forgotten", within=DEADLINE)
    # When it answers again; Then they are there, though nobody waits for them the first time
    hangs.clear()
    clock[0] += 11
    expect_soon(lambda: fresh.get() == figures(7), "there are figures again", within=DEADLINE)
