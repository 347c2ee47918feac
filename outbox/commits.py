"""The one rule of the commit lease, carried out: look the half up, then settle, or send COMMIT once within the window.

Shared by the reconciler and the check-back; ``outbox.verdict`` decides, this module does the I/O. If the process dies
before the COMMIT, or after it and before the settling, the lease runs out and the next holder looks the half up first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outbox import faults
from outbox.brokers.base import Broker, Ended, Ending, Sought
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.store.commit_leases import CommitLeases, Holding
from outbox.verdict import Confirmation, Next, Sighting, after_commit, after_gone, after_look_up

#: How the reason begins of a row that nobody can tell the outcome of: its message may be visible.
OUTCOME_UNKNOWN = "outcome unknown"
#: Seconds for the look-up of a half that the broker no longer finds at its handle. No COMMIT hangs on it.
_LAST_LOOK = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A holding and what became of it."""

    holding: Holding
    next: Next
    ended: Ended | None = None


class Commits:
    """Acts for the holder of commit leases."""

    #: Seconds for which a lease must be over before ``finish`` may be called: none.
    overdue = 0.0

    def __init__(self, broker: Broker, leases: CommitLeases, broker_retention: float) -> None:
        self._broker = broker
        self._leases = leases
        self._recent = broker_retention / 2

    @property
    def finds(self) -> bool:
        """Whether the broker can be looked into; if not, only the broker's own question may bring a COMMIT."""
        return self._broker.capabilities.finds

    def look_up(self, holdings: Sequence[Holding], until: float) -> list[Next]:
        """What the look-ups of the halves say; the visible ones are settled at once."""
        steps = [after_look_up(sighting) for sighting in self._sightings(holdings, until)]
        self.settle([holding for holding, step in zip(holdings, steps, strict=True) if step is Next.SETTLE])
        return steps

    def finish(self, holdings: Sequence[Holding], until: float) -> list[Finding]:
        """Looks all up, commits the absent ones by their stored handles before ``until``, acts on the answers."""
        looked = list(zip(holdings, self.look_up(holdings, until), strict=True))
        for holding in (it for it, step in looked if step is Next.GIVE_UP):
            self._act(holding, Next.GIVE_UP, "the broker's store does not go back to the decision any more")
        absent = [holding for holding, step in looked if step is Next.COMMIT]
        faults.point("commits.before_write")
        ended = self._broker.resolve([Ending(it.half, Verdict.COMMIT) for it in absent], until) if absent else []
        self.settle(
            [it for it, end in zip(absent, ended, strict=True) if after_commit(end.confirmation) is Next.SETTLE]
        )
        committed = [self._after_end(holding, end) for holding, end in zip(absent, ended, strict=True)]
        return [Finding(holding, step) for holding, step in looked if step is not Next.COMMIT] + committed

    def settle(self, holdings: Sequence[Holding]) -> None:
        """The broker made these halves visible."""
        if holdings:
            self._leases.settle((holding.row_id, holding.half.half_id) for holding in holdings)

    def _sightings(self, holdings: Sequence[Holding], until: float) -> list[Sighting]:
        return self._broker.find([Sought(holding.half, holding.decided_at) for holding in holdings], until)

    def _after_end(self, holding: Holding, end: Ended) -> Finding:
        """Acts on an answer other than "done": finds out what a lost handle means."""
        step = after_commit(end.confirmation)
        if end.confirmation is Confirmation.GONE:
            (sighting,) = self._sightings([holding], monotonic() + _LAST_LOOK)
            step = after_gone(sighting, decided_recently=holding.age < self._recent)
            self._act(holding, step, end.reason)
        return Finding(holding, step, end)

    def _act(self, holding: Holding, step: Next, reason: str) -> None:
        act: dict[Next, Callable[[], object]] = {
            Next.SETTLE: lambda: self.settle([holding]),
            Next.REOPEN: lambda: self._leases.reopen(holding, f"half lost, never visible: {reason}"),
            Next.GIVE_UP: lambda: self._leases.give_up(holding, f"{OUTCOME_UNKNOWN}: {reason}"),
        }
        act.get(step, lambda: None)()
