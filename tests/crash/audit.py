"""What came out, counted by the test itself: from the shop's orders, the topic's messages, and the effects."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from outbox.lifecycle import State
from tests.acceptance.shop import ROLLED_BACK
from tests.crash.fleet import Fleet

#: What is not a fault but the size of the run.
_SIZES = ("faults", "rows", "committed", "effects", "excused")


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts; all but the sizes are 0 if every promise is kept."""

    faults: int
    rows: int
    committed: int
    #: Business effects of the consumer; one for each committed order.
    effects: int
    #: Orders of the producer that do not exist, or that exist though they were rolled back.
    misproduced: int
    #: Committed, never visible.
    lost: int
    #: Visible once more than once, for each time.
    repeated: int
    #: Not delivered by the row's state.
    unfinished: int
    #: Visible, never committed.
    phantom: int
    effects_missing: int
    effects_repeated: int
    #: Processes that ended by themselves.
    fallen: int
    #: So many repeats are named by the guarantees page for what was run.
    excused: int = 0

    @property
    def clean(self) -> bool:
        """Whether every promise is kept."""
        figures = {name: count for name, count in asdict(self).items() if name not in _SIZES}
        return figures.pop("repeated") <= self.excused and not any(figures.values())


def audited(fleet: Fleet, faults: int, rows: Iterable[int], excused: int = 0) -> Audit:
    """Counts once all has drained; the orders with the numbers ``rows`` were written."""
    written = list(rows)
    committed, visible, effects = map(Counter, (fleet.committed(), fleet.visible(), fleet.effects()))
    wanted = Counter(f"order-{number}" for number in written if number % ROLLED_BACK)
    states = fleet.states()
    return Audit(
        faults=faults,
        rows=len(written),
        committed=committed.total(),
        effects=effects.total(),
        misproduced=(wanted - committed).total() + (committed - wanted).total(),
        lost=len(committed.keys() - visible.keys()),
        repeated=visible.total() - len(visible),
        unfinished=sum(states.values()) - states[State.DELIVERED] + abs(states[State.DELIVERED] - committed.total()),
        phantom=len(visible.keys() - committed.keys()),
        effects_missing=len(committed.keys() - effects.keys()),
        effects_repeated=(effects - Counter(committed.keys())).total(),
        fallen=len(fleet.fallen),
        excused=excused,
    )
