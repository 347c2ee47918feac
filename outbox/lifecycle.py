"""The row lifecycle: the one place where states and moves are written.

Everything else that speaks of states is derived from the two tables below: the CHECK constraint, the
partial-index predicates, the ``WHERE state IN`` of each update, the check-back verdicts, the diagram in the
README. A test compares them.

What each state means, who puts a row here, who takes it out, and what a crash leaves:

``pending``
    Must be published; may be leased by an attempt. ``add``, ``requeue`` and ``reopen`` put a row here; the relay
    (commit, bury, and deliver for plain messages), the check-back (adopt, which is the move ``commit``) or an operator
    (cancel) takes it out. A relay that dies here leaves a lease that runs out, and perhaps halves that the check-back
    adopts or rolls back.

``committed``
    The database has chosen the winning half; the broker must make it visible. The relay or the check-back puts a
    row here by compare-and-set; whoever learns that the broker confirmed takes it out. A crash here leaves a commit
    lease that runs out; the reconciler or the check-back takes it over and looks the half up before it acts.

``delivered``
    The broker confirmed that the message is visible. Only retention takes a row out, by deleting it.

``cancelled``
    Must never be published. An operator puts a row here while it is pending; ``requeue`` or retention takes it out.

``dead``
    The broker refused it too often, or its outcome cannot be known any more; the column ``reason`` says which. Kept
    until an operator requeues it, or retention deletes it where a period for dead rows is set.
"""

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where a row stands; the value is what the column ``state`` holds."""

    PENDING = "pending"
    COMMITTED = "committed"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    DEAD = "dead"


class Move(StrEnum):
    """What can happen to a row."""

    COMMIT = "commit"
    DELIVER = "deliver"
    CANCEL = "cancel"
    BURY = "bury"
    REQUEUE = "requeue"
    REOPEN = "reopen"
    GIVE_UP = "give_up"


class Verdict(StrEnum):
    """What the broker is told about a half message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


#: Every legal move. A pair that is not listed changes nothing: zero rows is a normal outcome.
TRANSITIONS: Final = MappingProxyType(
    {
        (State.PENDING, Move.COMMIT): State.COMMITTED,
        (State.PENDING, Move.DELIVER): State.DELIVERED,
        (State.PENDING, Move.CANCEL): State.CANCELLED,
        (State.PENDING, Move.BURY): State.DEAD,
        (State.COMMITTED, Move.DELIVER): State.DELIVERED,
        (State.COMMITTED, Move.REOPEN): State.PENDING,
        (State.COMMITTED, Move.GIVE_UP): State.DEAD,
        (State.CANCELLED, Move.REQUEUE): State.PENDING,
        (State.DEAD, Move.REQUEUE): State.PENDING,
    }
)

#: What an unleased row says about a half that is the row's own (same token, same half id).
VERDICTS: Final = MappingProxyType(
    {
        State.PENDING: Verdict.COMMIT,
        State.COMMITTED: Verdict.COMMIT,
        State.DELIVERED: Verdict.ROLLBACK,
        State.CANCELLED: Verdict.ROLLBACK,
        State.DEAD: Verdict.ROLLBACK,
    }
)

#: Where ``add`` puts a row.
INITIAL: Final = State.PENDING


def after(state: State, move: Move) -> State | None:
    """The state that ``move`` leads to from ``state``, or None where the move is not legal."""
    return TRANSITIONS.get((state, move))


def sources_of(move: Move) -> tuple[State, ...]:
    """The states that ``move`` may leave, in the order of ``State``."""
    return tuple(state for state in State if (state, move) in TRANSITIONS)


def target_of(move: Move) -> State:
    """The one state that ``move`` leads to."""
    (target,) = {to for (_, taken), to in TRANSITIONS.items() if taken is move}
    return target


def open_states() -> tuple[State, ...]:
    """The states of rows that still owe a message."""
    return tuple(state for state in State if (state, Move.DELIVER) in TRANSITIONS)


def endings() -> tuple[State, ...]:
    """The states of rows that owe nothing any more."""
    return tuple(state for state in State if state not in open_states())


def expiring() -> tuple[State, ...]:
    """The states whose rows retention deletes by default: every ending but dead, which an operator decides about."""
    return tuple(state for state in endings() if state is not State.DEAD)


def diagram() -> str:
    """The lifecycle as a Mermaid state diagram, as the README shows it."""
    lines = ["stateDiagram-v2", f"    [*] --> {INITIAL}: add"]
    lines += [f"    {source} --> {to}: {move}" for (source, move), to in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]: retention" for state in expiring()]
    return "\n".join(lines)
