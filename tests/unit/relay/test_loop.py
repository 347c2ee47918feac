"""The loop's rhythm, with neither database nor broker."""

from collections.abc import Iterator, Sequence
from typing import cast

from outbox.settings import Settings
from outbox.store.attempt import Attempt
from relay.breaker import Breaker
from relay.loop import Loop
from relay.shipping import Pass
from relay.wake import Wake

FASTEST, SLOWEST = 0.1, 1.6


class Nothing:
    """Passes that never find a row."""

    def claim(self) -> tuple[Sequence[Attempt], float]:
        return [], 0.0


class Rests:
    """Wakes the loop as told, without a wait, and stops it at the end."""

    def __init__(self, woken: Sequence[bool]) -> None:
        self._woken: Iterator[bool] = iter(woken)
        self.loop: Loop
        self.seconds: list[float] = []

    def rest(self, seconds: float) -> bool:
        if seconds:
            self.seconds.append(seconds)
            woken = next(self._woken, None)
            if woken is None:
                self.loop.stop()
            return bool(woken)
        return False

    def doze(self, *, at_once: bool = False) -> bool:
        return False

    def told(self) -> bool:
        return False

    def rise(self) -> None:
        """Nobody tells."""

    def ring(self) -> None:
        """Nobody rests."""

    def leave(self) -> None:
        """Nobody else is there."""

    def close(self) -> None:
        """Nothing is open."""


def rests(*woken: bool) -> list[float]:
    """How long a loop without rows rests, that is woken from these rests, or not."""
    wake = Rests(woken)
    settings = Settings(poll_fastest=FASTEST, poll_slowest=SLOWEST)
    breaker = Breaker(1, 2, lambda: 0.0)
    wake.loop = Loop(cast(Pass, Nothing()), breaker, lambda: None, cast(Wake, wake), settings)
    wake.loop.run()
    return wake.seconds


def test_a_loop_without_rows_looks_ever_more_rarely() -> None:
    assert rests(*[False] * 5) == [0.1, 0.2, 0.4, 0.8, 1.6, 1.6]


def test_a_loop_that_was_woken_in_vain_looks_again_soon() -> None:
    """Rows come, and somebody else is quicker: should that one vanish, nobody waits for the longest rest."""
    assert rests(*[False] * 4, True, False) == [0.1, 0.2, 0.4, 0.8, 1.6, 0.1, 0.2]
