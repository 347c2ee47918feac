"""A loop that dies is started again, and that is seen."""

import threading
from collections.abc import Iterator

import pytest

from outbox.errors import SettingsError
from outbox.health.pulse import Life, Pulse
from outbox.health.supervisor import Supervisor
from outbox.health.vitals import Vitals

#: Generous: the machine may be busy.
DEADLINE = 60.0


class Mortal:
    """A loop that dies as often as it is told, of what it is told, and then runs until it is stopped."""

    def __init__(self, *deaths: Exception | None) -> None:
        self._deaths = list(deaths)
        self.settled = threading.Event()
        self.stopping = threading.Event()
        self.starts = 0

    def run(self, pulse: Pulse) -> None:
        self.starts += 1
        if self._deaths:
            error = self._deaths.pop(0)
            if error is not None:
                raise error
            return
        pulse.beat()
        self.settled.set()
        self.stopping.wait(DEADLINE)


@pytest.fixture
def vitals() -> Vitals:
    return Vitals()


@pytest.fixture
def supervisor(vitals: Vitals) -> Iterator[Supervisor]:
    supervisor = Supervisor(vitals, pause=0.01, pause_most=0.02)
    yield supervisor
    supervisor.stop()


def test_a_loop_that_dies_is_started_again(
    vitals: Vitals, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a loop that dies of a fault of its own, ends by itself, and dies of a wrong setting
    loop = Mortal(ValueError("row 7"), None, SettingsError("OUTBOX_DATABASE_URL: cannot use it"))
    # When it is supervised; Then it comes to work all the same
    thread = supervisor.start("relay", loop.run, 60)
    assert loop.settled.wait(DEADLINE)
    assert loop.starts == 4
    # And what became of it is known
    sign = vitals.signs()["relay"]
    assert (sign.life, sign.deaths) == (Life.ALIVE, 3)
    assert vitals.ready()
    assert "row 7" in caplog.text
    # And what names its remedy is told in one line
    assert caplog.text.count("Traceback") == 1
    # When it is told to stop; Then it is not started again
    supervisor.stop()
    loop.stopping.set()
    thread.join(DEADLINE)
    assert vitals.signs()["relay"].life is Life.STOPPED


def test_a_loop_between_death_and_start_is_not_ready(vitals: Vitals) -> None:
    # Given a supervisor that waits for long
    supervisor = Supervisor(vitals, pause=DEADLINE)
    died = threading.Event()

    def dies(_pulse: Pulse) -> None:
        died.set()
        raise ValueError("row 7")

    thread = supervisor.start("relay", dies, 60)
    assert died.wait(DEADLINE)
    # When it waits; Then that shows
    while vitals.signs()["relay"].life is not Life.RESTARTING:
        assert thread.is_alive()
    assert vitals.faults() == {"relay": "restarting ValueError: row 7"}
    assert vitals.live()
    # When it is stopped; Then it does not wait until the end
    supervisor.stop()
    thread.join(DEADLINE / 2)
    assert not thread.is_alive()
