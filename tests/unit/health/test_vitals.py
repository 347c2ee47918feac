"""When a daemon counts as live and as ready, on a clock that the test turns."""

from outbox.health.pulse import Life
from outbox.health.vitals import Vitals


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_that_is_silent_for_too_long_is_stalled_and_turns_liveness_red() -> None:
    # Given a loop that may be silent for a minute
    clock = Clock()
    vitals = Vitals(clock)
    pulse = vitals.pulse("relay", 60)
    clock.now += 59
    assert (vitals.live(), vitals.ready()) == (True, True)
    # When it is silent for longer
    clock.now += 2
    # Then
    assert vitals.signs()["relay"].life is Life.STALLED
    assert (vitals.live(), vitals.ready()) == (False, False)
    assert "relay" in vitals.faults()
    # When it is heard again; Then all is well by itself
    pulse.beat()
    assert (vitals.live(), vitals.ready()) == (True, True)


def test_work_that_does_not_end_is_stalled_and_no_work_is_fine() -> None:
    # Given passes, of which none is under way for a day
    clock = Clock()
    vitals = Vitals(clock)
    passes = vitals.pulse("passes", 60, beats=False)
    clock.now += 86400
    assert vitals.live()
    # When one takes too long beside others that do not
    with passes.busy():
        clock.now += 61
        with passes.busy():
            assert not vitals.live()
    # Then it is stalled for as long as it lasts
    assert vitals.live()


def test_a_loop_that_died_is_not_ready_but_live() -> None:
    clock = Clock()
    vitals = Vitals(clock)
    pulse = vitals.pulse("reconcile", 60)
    pulse.died("ValueError: row 7")
    clock.now += 3600
    assert (vitals.live(), vitals.ready()) == (True, False)
    assert vitals.faults() == {"reconcile": "restarting ValueError: row 7"}
    pulse.beat()
    assert vitals.ready()
    assert vitals.signs()["reconcile"].deaths == 1


def test_needs_decide_about_readiness_alone() -> None:
    # Given a daemon that does not know yet
    clock = Clock()
    vitals = Vitals(clock)
    vitals.expect("database", "broker")
    assert not vitals.ready()
    # When both are there; Then it is ready
    assert vitals.has("database")
    assert vitals.has("broker")
    assert not vitals.has("broker")
    assert vitals.ready()
    # When one goes; Then it is not, and the reason and the time are told
    assert vitals.lacks("broker", "connection refused")
    clock.now += 5
    assert not vitals.lacks("broker", "connection refused")
    assert (vitals.live(), vitals.ready()) == (True, False)
    told = vitals.as_json()
    assert told["needs"]["broker"] == {"ok": False, "reason": "connection refused", "for_seconds": 5.0}
    # When it is back; Then it is ready by itself
    vitals.has("broker")
    assert vitals.ready()


def test_a_daemon_that_stops_is_live_and_not_ready() -> None:
    vitals = Vitals(Clock())
    vitals.pulse("relay", 60).stop()
    vitals.stop()
    assert (vitals.live(), vitals.ready()) == (True, False)
