"""The state of the model: one row, its halves at the broker, what is on the wire, and where each actor stands.

Everything is a tuple of small values, so that a world is hashable and worlds share their parts. Identities are small
numbers: a half is 1, 2, … and 0 means none (NULL in the row); an actor is its place in ``World.actors``.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from outbox.lifecycle import INITIAL, State

NONE = 0
NOBODY = -1


class Phase(IntEnum):
    """What an actor does next; a process that has died or has nothing to do is IDLE and remembers nothing."""

    IDLE = 0
    # A relay's attempt, up to its decision.
    CLAIMED = 1
    HALF_SENT = 2
    HALF_UNKNOWN = 3
    HALF_REFUSED = 4
    HALF_STORED = 5
    # A check-back with a question.
    ASKED = 6
    ADOPT = 7
    TAKE_OVER = 8
    # The holder of a commit lease.
    LOOK_UP = 9
    COMMIT = 10
    COMMIT_SENT = 11
    GONE = 12
    SETTLE = 13
    SETTLE_LEFTOVER = 14
    REOPEN = 15
    GIVE_UP = 16
    # Whoever learnt that a half has lost.
    ROLLBACK = 17


class Role(IntEnum):
    """Who an actor is."""

    RELAY = 0
    CHECK_BACK = 1
    RECONCILER = 2


class Row(NamedTuple):
    """The row; ``state`` None: retention has deleted it."""

    state: State | None
    #: The half whose token the row carries; tokens are named by the first half that was sent under them.
    token: int
    half: int
    #: Which stored copy of the half the row's handle names.
    handle: int
    #: The actor that knows the row's lease id.
    holder: int
    #: ``available_at`` is ahead.
    live: bool
    #: The decision is younger than half the broker's file retention.
    recent: bool
    #: Dead because the outcome of a commit cannot be known any more.
    lost_track: bool


class Half(NamedTuple):
    """A half at the broker: ``copies`` re-appended ones beside the first, of which those before ``kept`` are expired."""

    flying: bool
    stored: bool
    copies: int
    kept: int
    #: The newest copy has no removal record: the broker will ask about it.
    open: bool
    #: Ghost: somebody wrote ROLLBACK for it.
    rolled_back: bool


class Visible(NamedTuple):
    """Messages that consumers can see, counted up to two, and whether a look-up finds them."""

    count: int
    half: int
    indexed: bool
    expired: bool


class Actor(NamedTuple):
    """What a process remembers."""

    role: Role
    phase: Phase
    half: int
    handle: int
    #: Its own clock says that its commit window is open.
    window: bool


class Commit(NamedTuple):
    """A COMMIT on the wire; the answer goes to ``sender``, if it still waits."""

    half: int
    handle: int
    sender: int


class World(NamedTuple):
    """Everything; ``durable`` is what a crash of the database brings back (None: the row as it is)."""

    row: Row
    durable: Row | None
    halves: tuple[Half, ...]
    wire: tuple[Commit, ...]
    actors: tuple[Actor, ...]
    visible: Visible
    #: Ghost: what the last step did that no step may do.
    breach: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the exploration goes, and which misfortunes it tries."""

    relays: int = 2
    check_backs: int = 2
    reconcilers: int = 1
    #: Tokens in use at once; one whose half has expired is used again, so that attempts are not counted.
    tokens: int = 2
    #: Checks of one half before the broker discards it.
    checks: int = 1
    operator: bool = False
    #: Halves, and messages of old decisions, expire from the commit log although somebody still wants them.
    expiry: bool = False
    #: A transport that sends a half twice, under two ids, for one call.
    repeats_halves: bool = False
    #: The database crashes and loses what was not written durably.
    database_crash: bool = False
    retention: bool = False


NO_HALF = Half(flying=False, stored=False, copies=0, kept=0, open=False, rolled_back=False)
NO_MESSAGE = Visible(0, NONE, indexed=False, expired=False)


def initial(bounds: Bounds) -> World:
    """A row that was just added, and nothing else."""
    row = Row(INITIAL, NONE, NONE, 0, NOBODY, live=False, recent=False, lost_track=False)
    roles = (
        [Role.RELAY] * bounds.relays + [Role.CHECK_BACK] * bounds.check_backs + [Role.RECONCILER] * bounds.reconcilers
    )
    halves = (NO_HALF,) * (bounds.tokens * (2 if bounds.repeats_halves else 1))
    return World(row, None, halves, (), tuple(idle(role) for role in roles), NO_MESSAGE, "")


def idle(role: Role) -> Actor:
    """An actor that remembers nothing."""
    return Actor(role, Phase.IDLE, NONE, 0, window=False)


def token_of(half: int, bounds: Bounds) -> int:
    """The token that a half carries: the repeated one (of ``repeats_halves``) carries that of the first."""
    return half if half <= bounds.tokens else half - bounds.tokens


def with_half(world: World, half: int, value: Half) -> tuple[Half, ...]:
    """The halves with one replaced."""
    return (*world.halves[: half - 1], value, *world.halves[half:])


def with_actor(world: World, index: int, phase: Phase, **changes: int) -> tuple[Actor, ...]:
    """The actors with one in another phase."""
    actor = world.actors[index]
    after = idle(actor.role) if phase is Phase.IDLE else actor._replace(phase=phase, **changes)
    return (*world.actors[:index], after, *world.actors[index + 1 :])


def used(world: World, bounds: Bounds) -> set[int]:
    """The tokens that somebody or something still names."""
    halves = {world.row.token, world.row.half, world.visible.half}
    if world.durable is not None:
        halves |= {world.durable.token, world.durable.half}
    halves |= {actor.half for actor in world.actors} | {commit.half for commit in world.wire}
    halves |= {number for number, half in enumerate(world.halves, 1) if half.stored or half.flying}
    return {token_of(half, bounds) for half in halves}
