"""When to try again: pure functions; randomness is an argument."""

from typing import Final

#: The part of a wait by which jitter moves it at most.
SPREAD: Final = 0.2


def backoff(failures: int, *, first: float, most: float, jitter: float) -> float:
    """Seconds to wait after the ``failures``-th refusal: doubling from ``first`` up to ``most``.

    ``jitter``: as ``spread``, so that rows refused together do not come back together.
    """
    doubled = first * 2.0 ** min(failures - 1, 30)
    return spread(min(doubled, most), jitter)


def spread(seconds: float, jitter: float) -> float:
    """A wait that ``jitter`` in [-1, 1] moves by up to a fifth."""
    return seconds * (1 + SPREAD * jitter)


class Pause:
    """An adaptive rest: short after work, growing to ``slowest`` while nothing happens. Not thread-safe."""

    def __init__(self, fastest: float, slowest: float) -> None:
        self._fastest = fastest
        self._slowest = slowest
        self._next = fastest

    def reset(self) -> None:
        """There was work: look again soon."""
        self._next = self._fastest

    def grow(self) -> float:
        """There was none: seconds to rest now."""
        rest, self._next = self._next, min(self._next * 2, self._slowest)
        return rest
