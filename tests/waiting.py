"""Waiting for what other threads and processes bring about: with a deadline, never for a length of time."""

import time
from collections.abc import Callable

_POLL = 0.02


def expect_soon(condition: Callable[[], object], what: str = "it comes true", *, within: float = 60.0) -> None:
    """Returns once the condition holds; fails, naming it, after so many seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(_POLL)
