"""The breaker, on a clock that the test turns."""

from relay.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_opens_and_a_success_closes() -> None:
    # Given
    clock = Clock()
    breaker = Breaker(1.0, 4.0, clock)
    assert breaker.closed()
    assert breaker.remaining() == 0
    # When the broker goes away
    assert breaker.outage() == 1.0
    # Then nothing is claimed until the pause is over, then a probe
    assert not breaker.closed()
    assert breaker.remaining() == 1.0
    clock.now = 1.0
    assert breaker.remaining() == 0
    assert not breaker.closed()
    # And it comes back
    breaker.success()
    assert breaker.closed()


def test_repeated_outages_lengthen_the_pause_and_simultaneous_ones_do_not() -> None:
    clock = Clock()
    breaker = Breaker(1.0, 4.0, clock)
    breaker.outage()
    assert breaker.outage() == 1.0
    pauses = []
    for _ in range(4):
        clock.now += 100
        pauses.append(breaker.outage())
    assert pauses == [2.0, 4.0, 4.0, 4.0]
