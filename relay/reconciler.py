"""The reconciler: carries out decisions whose holder died, was cut off, or got no answer."""

from collections.abc import Callable, Sequence
from typing import Protocol

from outbox.commits import Finding
from outbox.settings import Settings
from outbox.store.commit_leases import CommitLeases, Holding
from outbox.verdict import Confirmation
from relay.events import Events

#: Rows taken over at once: few enough that all can be looked up and committed within one window.
_CHUNK = 50


class Finisher(Protocol):
    """Acts for the holder of commit leases, as the transport permits."""

    @property
    def overdue(self) -> float:
        """Seconds for which a lease must be over before it is taken."""
        ...

    def finish(self, holdings: Sequence[Holding], until: float) -> list[Finding]:
        """What becomes of each; no COMMIT is written after ``until``."""
        ...


class Reconciler:
    """Takes over committed rows whose lease is over, and ends them or finds that it cannot yet."""

    def __init__(
        self,
        leases: CommitLeases,
        finisher: Finisher,
        events: Events,
        settings: Settings,
        now: Callable[[], float],
    ) -> None:
        self._leases = leases
        self._finisher = finisher
        self._events = events
        self._settings = settings
        self._now = now

    def run(self) -> int:
        """One round, bounded by ``reconcile_rows``; the number of rows taken over."""
        taken = 0
        while taken < self._settings.reconcile_rows and (chunk := self._round()):
            taken += chunk
        return taken

    def _round(self) -> int:
        until = self._now() + self._settings.commit_window
        holdings = self._leases.take_over_due(_CHUNK, self._settings.commit_lease, self._finisher.overdue)
        for finding in self._finisher.finish(holdings, until) if holdings else ():
            self._report(finding)
        return len(holdings)

    def _report(self, finding: Finding) -> None:
        """A refusal that repeating cannot mend (wrong group, permission) is repeated ever more rarely."""
        row_id = finding.holding.row_id
        if finding.ended is not None and finding.ended.confirmation is Confirmation.DENIED:
            patience = max(finding.holding.age, self._settings.commit_lease)
            delay = min(patience, self._settings.backoff_most)
            self._leases.postpone(finding.holding, f"commit denied: {finding.ended.reason}", delay)
            self._events.reconciled(row_id, f"denied reason={finding.ended.reason}: the row stays committed")
            return
        self._events.reconciled(row_id, finding.next.value)
