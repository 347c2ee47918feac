"""What came out, counted by the test itself: from the shop's orders, the topic's messages, and the effects."""

from collections import Counter
from dataclasses import asdict, dataclass

from outbox.lifecycle import State
from tests.acceptance.shop import ROLLED_BACK
from tests.crash.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts; all but the first three are 0 if every promise is kept."""

    faults: int
    rows: int
    committed: int
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

    @property
    def clean(self) -> bool:
        """Whether every promise is kept."""
        figures = asdict(self)
        return not any(figures[name] for name in figures if name not in ("faults", "rows", "committed"))


def audited(fleet: Fleet, faults: int, rows: int) -> Audit:
    """Counts once all has drained; ``rows`` orders were written, numbered from 1."""
    committed, visible, effects = map(Counter, (fleet.committed(), fleet.visible(), fleet.effects()))
    wanted = Counter(f"order-{number}" for number in range(1, rows + 1) if number % ROLLED_BACK)
    states = fleet.states()
    return Audit(
        faults=faults,
        rows=rows,
        committed=committed.total(),
        misproduced=(wanted - committed).total() + (committed - wanted).total(),
        lost=len(committed.keys() - visible.keys()),
        repeated=visible.total() - len(visible),
        unfinished=sum(states.values()) - states[State.DELIVERED] + abs(states[State.DELIVERED] - committed.total()),
        phantom=len(visible.keys() - committed.keys()),
        effects_missing=len(committed.keys() - effects.keys()),
        effects_repeated=(effects - Counter(committed.keys())).total(),
        fallen=len(fleet.fallen),
    )
