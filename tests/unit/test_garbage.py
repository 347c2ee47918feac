"""The daemons look for garbage less often, and still find it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from outbox.cli import garbage


class Knot:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_garbage_in_cycles_is_still_found_without_being_asked_for() -> None:
    # Given a process that looks for garbage seldom
    garbage.seldom()
    assert gc.get_freeze_count()
    # When one cycle is dropped, and as many objects are kept as are made before the next look
    gone: list[weakref.ref[Knot]] = []
    dropped = weakref.ref(Knot(), gone.append)
    kept: list[list[None]] = []
    while not gone and len(kept) <= 2 * gc.get_threshold()[0]:
        kept.append([])
    # Then the cycle is gone
    assert gone == [dropped]
    assert len(kept) > 700
