"""The breaker, on a clock that the test turns."""

import itertools

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


def test_nothing_is_admitted_while_the_broker_answers_no_ping() -> None:
    # Given a broker that is away for half an hour, and a relay that asks to claim ten times a second
    clock, pings, there = Clock(), [0.0], False

    def reachable() -> bool:
        pings.append(clock.now)
        return there

    breaker = Breaker(1.0, 2.5, clock, reachable, jitter=lambda: 1.0)
    breaker.outage()
    while clock.now < 1800:
        clock.now += 0.1
        # Then nothing is claimed
        assert breaker.admit() > 0
    # And it was asked ever more rarely, but often enough that nobody waits long after it is back
    gaps = [later - earlier for earlier, later in itertools.pairwise(pings)]
    assert max(gaps) <= 2.5 * 1.2 + 0.2
    assert min(gaps[3:]) >= 2.5
    # When it answers, Then rows are admitted, and it counts as away until it takes one
    there = True
    clock.now += 5
    assert breaker.admit() == 0
    assert breaker.half_open()
    assert not breaker.closed()
    # When it takes none after all, Then the pause goes on from there
    assert breaker.outage() == 3.0
    assert not breaker.half_open()
    assert breaker.admit() == 3.0
    # When it does
    clock.now += 3
    assert breaker.admit() == 0
    assert breaker.success()
    # Then all goes on as if nothing had been
    assert breaker.admit() == 0
    assert not breaker.success()


def test_a_pass_that_ends_the_outage_during_a_ping_leaves_nothing_half_open() -> None:
    # Given a breaker whose pause is over, and a pass under way that is stored while the broker is pinged
    clock = Clock()
    breaker = Breaker(1.0, 4.0, clock, reachable=lambda: breaker.success())
    breaker.outage()
    clock.now = 1.0
    # When rows are to be claimed
    assert breaker.admit() == 0
    # Then it is closed, and nothing else
    assert breaker.closed()
    assert not breaker.half_open()


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
