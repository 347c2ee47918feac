"""What the model explores: the daemons' own functions, and the comparisons that their statements make.

The fields that hold functions are the ones of ``outbox.verdict``. The flags stand for what is written in SQL
(``outbox/store``) or in the daemons' own clocks; each is on, and ``variants`` turns one at a time off.
"""

from collections.abc import Callable
from dataclasses import dataclass

from outbox.verdict import (
    Confirmation,
    HalfView,
    Next,
    RowView,
    Sighting,
    Step,
    after_commit,
    after_gone,
    after_look_up,
    verdict,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol as built; a broken variant replaces one field."""

    verdict: Callable[[RowView | None, HalfView], Step] = verdict
    after_look_up: Callable[[Sighting], Next] = after_look_up
    after_commit: Callable[[Confirmation], Next] = after_commit
    after_gone: Callable[..., Next] = after_gone
    #: COMMIT only while the sender's own clock says that its window is open.
    window: bool = True
    #: decide, adopt and take-over take a commit lease.
    commit_lease: bool = True
    #: Who relies on a lease compares its id, and judges by the window of its own.
    lease_id_compared: bool = True
    #: Whoever did not decide looks the half up before it commits.
    look_up_first: bool = True
    #: A look-up says "cannot tell" while the index is behind.
    lag_known: bool = True
    #: A look-up never says "absent" of a decision that the broker's store does not go back to.
    reach_known: bool = True
    #: The one assumption: a COMMIT that was written arrives or dies before its lease is over.
    commit_in_time: bool = True
    #: adopt compares that the attempt's lease is over.
    adopt_waits: bool = True
    #: A commit lease is taken over only once it is over.
    take_over_waits: bool = True
    #: cancel, bury, requeue and reopen set the token to NULL.
    token_cleared: bool = True
    #: decide, and every other write of an attempt, compares its token.
    token_compared: bool = True
    #: A commit lease that was taken survives a crash of the database.
    take_over_durable: bool = True
    #: The check-back acts only if the row it took over still names the half it was asked about.
    half_compared: bool = True


AS_BUILT = Rules()
