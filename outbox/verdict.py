"""What the row says about a half message, and what the holder of a commit lease does next: pure functions.

The daemons do the I/O, these functions decide; ``tests/model`` explores the protocol over the same functions.
"""

from dataclasses import dataclass
from enum import StrEnum

from outbox.lifecycle import VERDICTS, State, Verdict


class Sighting(StrEnum):
    """What a look-up of a half's unique id among the visible messages said."""

    VISIBLE = "visible"
    ABSENT = "absent"
    CANNOT_TELL = "cannot tell"
    #: Not visible now, and the broker's store no longer goes back to the decision: nobody can ever tell.
    EXPIRED = "expired"


class Confirmation(StrEnum):
    """What the broker said to the end (commit or rollback) of a half."""

    CONFIRMED = "confirmed"
    #: The broker does not find the half at its handle ("Find prepared transaction message failed").
    GONE = "gone"
    #: The broker refuses for another reason: wrong group, permission, disk.
    DENIED = "denied"
    #: Not sent, or sent and not answered: it may have been carried out.
    UNANSWERED = "unanswered"


class Step(StrEnum):
    """What the check-back does about a half that the broker asks about."""

    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    COMMIT = "commit"
    #: Compare-and-set pending -> committed with this half, then as ``TAKE_OVER``.
    ADOPT = "adopt"
    #: Take the commit lease, look the half up, then act on ``after_look_up``.
    TAKE_OVER = "take over"


class Next(StrEnum):
    """What the holder of a fresh commit lease does."""

    SETTLE = "settle"
    COMMIT = "commit"
    WAIT = "wait"
    REOPEN = "reopen"
    GIVE_UP = "give up"
    #: Of a transport that cannot confirm: settle without the broker's word.
    PRESUME = "presume"
    #: Of such a transport: stay committed, listed as unsure, until an operator decides.
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class RowView:
    """What a verdict needs to know of a row, read in one statement."""

    state: State
    token: str | None
    half_id: str | None
    #: ``available_at`` has passed by the database's clock: the lease of the attempt, or the commit lease, is over.
    lease_over: bool
    #: Delivered without the broker's confirmation (a transport that cannot confirm).
    presumed: bool = False


@dataclass(frozen=True, slots=True)
class HalfView:
    """What a half message says of itself: the attempt that sent it, and its own unique id."""

    token: str
    half_id: str


def verdict(row: RowView | None, half: HalfView) -> Step:
    """What to do about ``half``, a half of our own origin, given its row (None: there is none)."""
    if row is None:
        return Step.UNKNOWN
    if VERDICTS[row.state] is Verdict.ROLLBACK:
        return Step.COMMIT if row.presumed and _is_own(row, half) else Step.ROLLBACK
    if not _is_own(row, half):
        return Step.ROLLBACK
    if not row.lease_over:
        return Step.UNKNOWN
    return Step.ADOPT if row.state is State.PENDING else Step.TAKE_OVER


def _is_own(row: RowView, half: HalfView) -> bool:
    """Whether ``half`` is the row's own half: the only one that may ever win, or has won."""
    if row.token is None or row.token != half.token:
        return False
    return row.state is State.PENDING or row.half_id == half.half_id


def after_look_up(sighting: Sighting) -> Next:
    """What a holder that took the commit lease over does once it has looked the half up."""
    steps = {Sighting.VISIBLE: Next.SETTLE, Sighting.ABSENT: Next.COMMIT, Sighting.EXPIRED: Next.GIVE_UP}
    return steps.get(sighting, Next.WAIT)


def after_commit(confirmation: Confirmation) -> Next:
    """What the sender of a COMMIT does with the broker's answer; GONE asks for one more look-up first."""
    return Next.SETTLE if confirmation is Confirmation.CONFIRMED else Next.WAIT


def after_gone(sighting: Sighting, *, decided_recently: bool) -> Next:
    """What the reconciler does when the broker no longer finds the half at its handle.

    ``decided_recently``: the decision is younger than half the broker's file retention, so that an absent message
    was never visible rather than visible once and expired since.
    """
    if sighting is Sighting.VISIBLE:
        return Next.SETTLE
    if sighting is Sighting.CANNOT_TELL:
        return Next.WAIT
    return Next.REOPEN if decided_recently and sighting is Sighting.ABSENT else Next.GIVE_UP


def after_horizon(*, watched: bool, republish: bool) -> Next:
    """What becomes of a row whose COMMIT no transport could confirm, once the broker would have stopped asking.

    ``watched``: a listener was there from the decision on. Had the COMMIT been lost, the broker would have asked it,
    and the answer would have been another COMMIT; so the message is visible. Otherwise it may never have become so:
    ``republish`` risks a repeat, holding risks a loss until somebody looks.
    """
    if watched:
        return Next.PRESUME
    return Next.REOPEN if republish else Next.HOLD
