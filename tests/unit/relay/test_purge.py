"""The purge beside the relay's passes: how it rests, and when it ends."""

from collections.abc import Iterator

import pytest

from outbox.store.retention import Periods
from relay.events import Events
from relay.purge import LONGEST, Purge


class Deletions:
    """Stands for ``Retention``: each batch takes half a second of the test's clock."""

    def __init__(self, batches: list[int]) -> None:
        self.batches = batches
        self.now = 0.0
        self.asked: list[tuple[Periods, int]] = []

    def run(self, periods: Periods, limit: int) -> Iterator[int]:
        """Deletes what it was given."""
        self.asked.append((periods, limit))
        for rows in self.batches:
            self.now += 0.5
            yield rows


class Purged(Events):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def purged(self, rows: int) -> None:
        """One batch."""
        self.rows.append(rows)


@pytest.mark.parametrize(("rests", "expected"), [(99, [500, 500, 20]), (2, [500, 500]), (1, [500])])
def test_the_purge_rests_as_long_as_it_worked_until_nothing_is_left_or_the_relay_stops(
    rests: int, expected: list[int]
) -> None:
    # Given three batches, and a relay that stops during one of the rests, or never
    deletions, said, rested = Deletions([500, 500, 20]), Purged(), list[float]()

    def rest(seconds: float) -> bool:
        rested.append(seconds)
        deletions.now += seconds
        return len(rested) == rests

    periods = Periods(100.0, 200.0)
    # When it purges
    Purge(deletions, periods, said, lambda: deletions.now, rest).run()  # type: ignore[arg-type]
    # Then each batch is told, and followed by a rest of its own length
    assert said.rows == expected
    assert rested == [0.5] * len(expected)
    assert deletions.asked == [(periods, 500)]


def test_nothing_to_delete_is_no_event() -> None:
    deletions, said = Deletions([]), Purged()
    Purge(deletions, Periods(100.0), said, lambda: 0.0, lambda _: False).run()  # type: ignore[arg-type]
    assert said.rows == []


def test_a_run_ends_however_much_there_is_to_delete() -> None:
    # Given a backlog of a day at this pace
    deletions, said = Deletions([500] * 86_400), Purged()

    def rest(seconds: float) -> bool:
        deletions.now += seconds
        return False

    # When the purge runs
    Purge(deletions, Periods(100.0), said, lambda: deletions.now, rest).run()  # type: ignore[arg-type]
    # Then it has used its time, and leaves the rest to the next run
    assert deletions.now == LONGEST
    assert len(said.rows) == LONGEST
