"""How many messages may be in flight at one broker."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from outbox.brokers.remoting.window import CAP, FIRST, LEAST, Window
from outbox.clock import monotonic


def test_it_grows_from_few_to_the_cap_and_shrinks_when_busy() -> None:
    # Given a cold broker; When all answers are fine; Then twice as many each time, up to the cap
    window = Window()
    limits = []
    for _ in range(6):
        places = window.take([1] * 1000, monotonic())
        limits.append(places)
        window.give_back([1] * places, busy=False)
    assert limits == [FIRST, 64, 128, 256, CAP, CAP]
    # When it is busy; Then half as many, but never none
    for _ in range(20):
        window.give_back([1] * window.take([1] * 1000, monotonic()), busy=True)
    assert window.limit == LEAST


def test_small_batches_prove_nothing() -> None:
    # Given batches far below the limit; When they are fine; Then the limit stays
    window = Window()
    for _ in range(10):
        window.give_back([1] * window.take([1], monotonic()), busy=False)
    assert window.limit == FIRST


def test_who_finds_no_place_gets_none_in_time() -> None:
    window = Window(cap=4)
    assert window.take([1] * 4, monotonic()) == 4
    assert window.take([1], monotonic() + 0.05) == 0


def test_a_waiting_thread_gets_the_places_that_come_back() -> None:
    # Given a full window and a thread that waits; When places come back; Then it has them
    window = Window(cap=4)
    window.take([1] * 4, monotonic())
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(window.take([1] * 3, monotonic() + 60)))
    waiting.start()
    window.give_back([1] * 4, busy=False)
    waiting.join(60)
    assert got == [3]


@given(st.lists(st.tuples(st.integers(1, 700), st.booleans()), max_size=50), st.integers(1, 600))
def test_never_more_than_the_cap(turns: list[tuple[int, bool]], cap: int) -> None:
    # Given any course of turns; When places are taken; Then they stay within one and the cap
    window = Window(cap)
    for wanted, busy in turns:
        places = window.take([1] * wanted, monotonic())
        assert 1 <= places <= min(wanted, max(cap, LEAST))
        window.give_back([1] * places, busy=busy)


def test_bytes_in_flight_are_bounded_whoever_sends_them() -> None:
    # Given room for 100 bytes; When threads take; Then each gets half at most, and all together no more than that
    window = Window(most_bytes=100)
    assert window.take([20] * 10, monotonic()) == 2
    assert window.take([50, 1], monotonic()) == 1
    assert window.take([20], monotonic() + 0.05) == 0
    assert window.take([10], monotonic()) == 1
    # When some are answered; Then there is room again
    window.give_back([50], busy=False)
    assert window.take([20, 20, 20], monotonic()) == 2


def test_a_message_above_the_bound_goes_alone() -> None:
    # Given a message above the bound, and another one in flight; When it wants a place; Then it waits, and is alone
    window = Window(most_bytes=100)
    assert window.take([10], monotonic()) == 1
    assert window.take([400], monotonic() + 0.05) == 0
    window.give_back([10], busy=False)
    assert window.take([400, 1], monotonic()) == 1
    assert window.take([1], monotonic() + 0.05) == 0
    window.give_back([400], busy=False)
    assert window.take([1], monotonic()) == 1


@given(st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=40), max_size=20))
def test_never_more_bytes_than_the_bound(turns: list[list[int]]) -> None:
    # Given messages of any sizes; When places are taken and kept; Then their bytes stay within the bound, or are one's
    window = Window(most_bytes=60)
    in_flight: list[int] = []
    for sizes in turns:
        granted = window.take(sizes, monotonic())
        in_flight += sizes[:granted]
        assert sum(in_flight) <= 60 or len(in_flight) == 1
