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
    HALF_SENT = 1
    HALF_UNKNOWN = 2
    HALF_NOT_STORED = 3
    HALF_STORED = 4
    # A check-back with a question.
    ASKED = 5
    ADOPT = 6
    TAKE_OVER = 7
    # The holder of a commit lease.
    LOOK_UP = 8
    COMMIT = 9
    COMMIT_SENT = 10
    GONE = 11
    SETTLE = 12
    SETTLE_LEFTOVER = 13
    REOPEN = 14
    GIVE_UP = 15
    POSTPONE = 16


class Role(IntEnum):
    """Who an actor is."""

    RELAY = 0
    CHECK_BACK = 1
    RECONCILER = 2


class Age(IntEnum):
    """How old the decision is, measured by how long the broker keeps its files."""

    YOUNG = 0
    #: More than half of that.
    OLD = 1
    #: The broker's store does not go back to it any more.
    OUTLIVED = 2


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
    age: Age
    #: Dead because the outcome of a commit cannot be known any more.
    lost_track: bool


class Half(NamedTuple):
    """A half at the broker, as copies 0 to ``copies``; each check adds one, and those before ``kept`` are expired."""

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

    number: int
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

    relays: int = 1
    check_backs: int = 1
    reconcilers: int = 1
    #: Tokens in use at once; one whose half has expired is used again, so that attempts are not counted.
    tokens: int = 2
    #: Checks of one half before the broker discards it.
    checks: int = 1
    operator: bool = False
    #: Halves expire from the commit log although somebody still wants them.
    halves_expire: bool = False
    #: Decisions grow old, and then messages expire.
    decisions_age: bool = False
    #: A transport that sends a half twice, under two ids, for one call.
    repeats_halves: bool = False
    #: The database crashes and loses what was not written durably.
    database_crash: bool = False
    retention: bool = False


NO_HALF = Half(flying=False, stored=False, copies=0, kept=0, open=False, rolled_back=False)
NO_MESSAGE = Visible(0, NONE, indexed=False, expired=False)


def initial(bounds: Bounds) -> World:
    """A row that was just added, and nothing else."""
    row = Row(INITIAL, NONE, NONE, 0, NOBODY, live=False, age=Age.YOUNG, lost_track=False)
    roles = (
        [Role.RELAY] * bounds.relays + [Role.CHECK_BACK] * bounds.check_backs + [Role.RECONCILER] * bounds.reconcilers
    )
    halves = (NO_HALF,) * (bounds.tokens * (2 if bounds.repeats_halves else 1))
    return World(row, None, halves, (), tuple(idle(role) for role in roles), NO_MESSAGE, "")


_AT_REST = {role: Actor(role, Phase.IDLE, NONE, 0, window=False) for role in Role}


def idle(role: Role) -> Actor:
    """An actor that remembers nothing."""
    return _AT_REST[role]


def token_of(half: int, bounds: Bounds) -> int:
    """The token that a half carries: the repeated one (of ``repeats_halves``) carries that of the first."""
    return half if half <= bounds.tokens else half - bounds.tokens


# Spelled out in the next two, since they are half of the exploration's time.
def with_half(world: World, half: int, value: Half) -> World:
    """The world with one half replaced."""
    halves = (*world.halves[: half - 1], value, *world.halves[half:])
    return World(world.row, world.durable, halves, world.wire, world.actors, world.visible, world.breach)


def with_actor(
    world: World, index: int, phase: Phase, *, half: int | None = None, handle: int | None = None, window: bool = False
) -> World:
    """The world with one actor in another phase; ``window``: a commit window opens for it."""
    role, _, old_half, old_handle, old_window = world.actors[index]
    after = idle(role)
    if phase is not Phase.IDLE:
        half = old_half if half is None else half
        handle = old_handle if handle is None else handle
        after = Actor(role, phase, half, handle, window or old_window)
    actors = (*world.actors[:index], after, *world.actors[index + 1 :])
    return World(world.row, world.durable, world.halves, world.wire, actors, world.visible, world.breach)


def used(world: World, bounds: Bounds) -> set[int]:
    """The tokens that somebody or something still names."""
    named = {world.row.token, world.row.half, world.visible.half}
    named.update(actor.half for actor in world.actors)
    named.update(commit.half for commit in world.wire)
    named.update(number for number, half in enumerate(world.halves, 1) if half.stored or half.flying)
    if world.durable is not None:
        named.update((world.durable.token, world.durable.half))
    return {token_of(half, bounds) for half in named} if bounds.repeats_halves else named
