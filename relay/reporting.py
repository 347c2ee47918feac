"""Who else is told what the relay did: health and metrics, beside the log."""

from collections.abc import Callable, Collection
from typing import Any, Final

from outbox.health.metrics import Metrics
from outbox.health.vitals import Vitals
from outbox.shown import cause
from outbox.store.attempt import Attempt
from relay.events import Events

#: What a relay needs, by the names that probes are told.
DATABASE: Final = "database"
CLAIMS: Final = "claims"
BROKER: Final = "broker"


class FanOut(Events):
    """Tells each fact to several."""

    def __init__(self, *told: Events) -> None:
        self._told = told


def _to_each(name: str) -> Callable[..., None]:
    def tell(self: FanOut, *facts: Any, **more: Any) -> None:
        for one in self._told:
            getattr(one, name)(*facts, **more)

    return tell


# Written out, a fact that is added to ``Events`` and forgotten here would be told to nobody.
for _name in [name for name in vars(Events) if not name.startswith("_")]:
    setattr(FanOut, _name, _to_each(_name))


class VitalEvents(Events):
    """What keeps a relay from being ready, as soon as it is noticed."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def claimed(self, attempts: Collection[Attempt]) -> None:  # noqa: ARG002 -- the base class's signature
        """The database takes claims."""
        self._vitals.has(CLAIMS)

    def claim_failed(self, error: BaseException) -> None:
        """The database takes none."""
        self._vitals.lacks(CLAIMS, cause(error))

    def outage(self, reason: str, pause: float) -> None:  # noqa: ARG002 -- the base class's signature
        """The broker is away."""
        self._vitals.lacks(BROKER, reason)

    def recovered(self) -> None:
        """It is back."""
        self._vitals.has(BROKER)


#: What is counted, and its explanation.
_COUNTED: Final = {
    "claimed_rows": "Rows leased for a pass.",
    "committed_rows": "Rows that chose their half.",
    "lost_halves": "Stored halves that were not chosen.",
    "delivered_rows": "Rows whose commit the broker confirmed at once.",
    "unconfirmed_commits": "Commits left to the reconciler.",
    "refusals": "Refusals by the broker.",
    "buried_rows": "Rows that were refused too often.",
    "unknown_halves": "Halves of which it is not known whether the broker stored them.",
    "outages": "Passes that found the broker away.",
    "postponed_rows": "Rows that wait for their topic, or for one broker of several.",
    "failed_claims": "Claims that the database refused.",
    "failed_work": "Runs of scheduled work that the database did not let be done.",
    "undecided_rows": "Rows whose decision the database did not answer.",
    "lost_leases": "Rows whose lease was over before their decision.",
    "reconciled_rows": "Rows taken over from a holder that was gone.",
    "purged_rows": "Rows that retention deleted.",
    "set_back_rows": "Rows that would have waited longer because the database's clock was set back.",
}
#: Counted for each topic or work, which are not known before.
_PARTED: Final = frozenset({"refusals", "failed_work"})


class CountedEvents(Events):
    """Facts as counters."""

    def __init__(self, metrics: Metrics, database: str) -> None:
        self._metrics = metrics
        self._labels = {"database": database}
        for name in _COUNTED.keys() - _PARTED:  # a series that begins with its first event hides it from rate()
            self._add(name, 0)

    def claimed(self, attempts: Collection[Attempt]) -> None:
        """Rows."""
        self._add("claimed_rows", len(attempts))

    def decided(self, committed: int, lost: int) -> None:
        """Rows, and halves."""
        self._add("committed_rows", committed)
        self._add("lost_halves", lost)

    def settled(self, delivered: int, unconfirmed: int) -> None:
        """Rows."""
        self._add("delivered_rows", delivered)
        self._add("unconfirmed_commits", unconfirmed)

    def refused(self, attempt: Attempt, reason: str, *, buried: bool) -> None:  # noqa: ARG002 -- as the base class's
        """Refusals, and rows that died of them."""
        self._add("refusals", 1, topic=attempt.topic)
        self._add("buried_rows", int(buried))

    def unknown(self, attempt: Attempt, reason: str) -> None:  # noqa: ARG002 -- as the base class's
        """Halves."""
        self._add("unknown_halves", 1)

    def outage(self, reason: str, pause: float) -> None:  # noqa: ARG002 -- as the base class's
        """Passes."""
        self._add("outages", 1)

    def partial_outage(self, rows: int, reason: str) -> None:  # noqa: ARG002 -- as the base class's
        """Rows."""
        self._add("postponed_rows", rows)

    def claim_failed(self, error: BaseException) -> None:  # noqa: ARG002 -- as the base class's
        """Claims."""
        self._add("failed_claims", 1)

    def work_failed(self, name: str, error: BaseException) -> None:  # noqa: ARG002 -- as the base class's
        """Runs."""
        self._add("failed_work", 1, work=name)

    def undecided(self, rows: int, error: BaseException) -> None:  # noqa: ARG002 -- as the base class's
        """Rows."""
        self._add("undecided_rows", rows)

    def lease_lost(self, rows: int) -> None:
        """Rows."""
        self._add("lost_leases", rows)

    def reconciled(self, row_id: int, what: str) -> None:  # noqa: ARG002 -- as the base class's
        """Rows."""
        self._add("reconciled_rows", 1)

    def purged(self, rows: int) -> None:
        """Rows."""
        self._add("purged_rows", rows)

    def set_back(self, rows: int) -> None:
        """Rows."""
        self._add("set_back_rows", rows)

    def _add(self, name: str, amount: int, **labels: str) -> None:
        self._metrics.add(f"outbox_{name}_total", _COUNTED[name], amount, **self._labels, **labels)
