"""The schedule: its work goes on when the wall clock is set."""

import logging
import threading
from collections.abc import Iterator
from itertools import chain, repeat

import pytest
from sqlalchemy.exc import OperationalError

from relay.events import Events
from relay.schedule import Schedule

#: Generous: the machine may be busy.
DEADLINE = 60.0


def stepping(*steps: float) -> Iterator[float]:
    """What a clock says that stands still but for these steps; the last is where it stays."""
    return chain(steps, repeat(steps[-1]))


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_work_goes_on_when_the_wall_clock_is_set(step: float, caplog: pytest.LogCaptureFixture) -> None:
    # Given work that is due in an hour by a wall clock that is then set by an hour
    said = stepping(0.0, 0.0, step)
    schedule, done = Schedule(wall=lambda: next(said), now=lambda: 0.0), threading.Event()
    schedule.every(3600.0, done.set, "work")
    # When the schedule runs
    schedule.start()
    ran = done.wait(DEADLINE)
    schedule.stop()
    # Then the work does not wait for that hour, and the log says why
    assert ran
    assert [record.levelno for record in caplog.records if f"was set by {step:+.1f} s" in record.message] == [
        logging.WARNING
    ]


def test_a_clock_that_is_slewed_changes_nothing() -> None:
    # Given work that is due in an hour, and clocks that drift apart a little
    said, looked = stepping(0.0, 0.1), threading.Semaphore(0)

    def wall() -> float:
        looked.release()
        return next(said)

    schedule, done = Schedule(wall=wall, now=lambda: 0.0), threading.Event()
    schedule.every(3600.0, done.set, "work")
    # When they were compared
    schedule.start()
    seen = [looked.acquire(timeout=DEADLINE) for _ in range(3)]
    schedule.stop()
    # Then nothing ran ahead of its time
    assert seen == [True, True, True]
    assert not done.is_set()


class Told(Events):
    """Remembers what failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def work_failed(self, name: str, error: BaseException) -> None:
        """One run."""
        self.failed.append(f"{name}: {error.args[0]}")


def test_work_that_the_database_does_not_let_be_done_is_told_and_done_again() -> None:
    # Given work that the database refuses once
    told, done = Told(), threading.Event()

    def work() -> None:
        if not told.failed:
            raise OperationalError("DELETE", {}, ValueError("it took too long"))
        done.set()

    schedule = Schedule(events=told)
    schedule.every(0.01, work, "purge")
    # When the schedule runs; Then whoever is told of the relay's deeds is told of that, and it is done in the end
    schedule.start()
    ran = done.wait(DEADLINE)
    schedule.stop()
    assert ran
    assert told.failed == ["purge: (builtins.ValueError) it took too long"]
