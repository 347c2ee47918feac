"""The protocol with one thing left out, and what goes wrong then: each must be caught."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from outbox.lifecycle import State
from outbox.verdict import Confirmation, HalfView, Next, RowView, Sighting, Step, after_commit, after_gone, verdict
from tests.model.rules import AS_BUILT, Rules
from tests.model.world import Bounds


@dataclass(frozen=True, slots=True)
class Variant:
    """A broken protocol, the bounds in which it breaks, and the property that shows it."""

    rules: Rules
    #: The name of a property, or ``END``.
    broken: str
    bounds: Bounds = field(default_factory=Bounds)


def _adopts_at_once(row: RowView | None, half: HalfView) -> Step:
    """Takes no notice of the attempt's lease."""
    pending = row is not None and row.state is State.PENDING
    return verdict(replace(row, lease_over=True) if row is not None and pending else row, half)


def _takes_over_at_once(row: RowView | None, half: HalfView) -> Step:
    """Takes no notice of the commit lease."""
    committed = row is not None and row.state is State.COMMITTED
    return verdict(replace(row, lease_over=True) if row is not None and committed else row, half)


def _impatient(row: RowView | None, half: HalfView) -> Step:
    """Rolls back while the attempt is still at work."""
    at_work = row is not None and row.state is State.PENDING and not row.lease_over
    return Step.ROLLBACK if at_work else verdict(row, half)


def _stranger(row: RowView | None, half: HalfView) -> Step:
    """Takes a half that has no row for a transaction that was rolled back."""
    return Step.ROLLBACK if row is None else verdict(row, half)


def _any_half_of_the_token(row: RowView | None, half: HalfView) -> Step:
    """Compares tokens and not halves."""
    return verdict(row, half if row is None or row.half_id is None else replace(half, half_id=row.half_id))


def _commits_delivered(row: RowView | None, half: HalfView) -> Step:
    """Answers COMMIT to a half of a delivered row, as it would to its only copy."""
    delivered = row is not None and row.state is State.DELIVERED
    return verdict(replace(row, presumed=True) if row is not None and delivered else row, half)


def _believes_silence(confirmation: Confirmation) -> Next:
    """Takes a COMMIT without an answer for done."""
    return Next.SETTLE if confirmation is Confirmation.UNANSWERED else after_commit(confirmation)


def _never_reopens(sighting: Sighting, *, decided_recently: bool) -> Next:
    """Waits for a half that is gone."""
    found = after_gone(sighting, decided_recently=decided_recently)
    return Next.WAIT if found is Next.REOPEN else found


def _never_gives_up(sighting: Sighting) -> Next:
    """Waits for an answer that nobody can give any more."""
    known = {Sighting.VISIBLE: Next.SETTLE, Sighting.ABSENT: Next.COMMIT}
    return known.get(sighting, Next.WAIT)


_TWO: Final = "one message"
_BREACH: Final = "no breach"
#: Not a property of a world: that a good end can be reached from it.
END: Final = "end"
_AGING: Final = Bounds(check_backs=0, decisions_age=True)

VARIANTS: Final[Mapping[str, Variant]] = MappingProxyType(
    {
        "no window": Variant(replace(AS_BUILT, window=False), _TWO),
        "no commit lease": Variant(replace(AS_BUILT, commit_lease=False), _TWO),
        "lease not compared with its holder": Variant(replace(AS_BUILT, lease_id_compared=False), _TWO),
        "no look-up before a repeated COMMIT": Variant(replace(AS_BUILT, look_up_first=False), _TWO),
        "absent while the index lags": Variant(replace(AS_BUILT, lag_known=False), _TWO),
        "late COMMIT": Variant(replace(AS_BUILT, commit_in_time=False), _TWO),
        "take-over without waiting for the lease": Variant(
            replace(AS_BUILT, verdict=_takes_over_at_once, take_over_waits=False), _TWO
        ),
        "take-over lost in a crash of the database": Variant(
            replace(AS_BUILT, take_over_durable=False), _TWO, Bounds(tokens=3, database_crash=True)
        ),
        "COMMIT of another half than the one held": Variant(
            replace(AS_BUILT, half_compared=False), "delivered is visible", Bounds(halves_expire=True)
        ),
        "any half of the token": Variant(
            replace(AS_BUILT, verdict=_any_half_of_the_token, half_compared=False),
            _TWO,
            Bounds(tokens=1, repeats_halves=True),
        ),
        "COMMIT for a half of a delivered row": Variant(replace(AS_BUILT, verdict=_commits_delivered), _TWO),
        "absent beyond the reach of the store": Variant(replace(AS_BUILT, reach_known=False), _TWO, _AGING),
        "delivered without an answer": Variant(
            replace(AS_BUILT, after_commit=_believes_silence), "delivered is visible"
        ),
        "adopt without waiting for the lease": Variant(
            replace(AS_BUILT, verdict=_adopts_at_once, adopt_waits=False), _BREACH
        ),
        "ROLLBACK while the attempt is at work": Variant(replace(AS_BUILT, verdict=_impatient), _BREACH),
        "ROLLBACK for a half without a row": Variant(
            replace(AS_BUILT, verdict=_stranger), _BREACH, Bounds(retention=True)
        ),
        "requeue that keeps the token": Variant(replace(AS_BUILT, token_cleared=False), _BREACH, Bounds(operator=True)),
        "decide without comparing the token": Variant(
            replace(AS_BUILT, token_compared=False, lease_id_compared=False), _BREACH
        ),
        "never reopened": Variant(
            replace(AS_BUILT, after_gone=_never_reopens), END, Bounds(check_backs=0, halves_expire=True)
        ),
        "never given up": Variant(replace(AS_BUILT, after_look_up=_never_gives_up), END, _AGING),
    }
)
