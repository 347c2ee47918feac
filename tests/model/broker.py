"""The broker and the wire: halves at offsets, COMMITs that are late or lost, look-ups, checks, forgetting.

The broker keeps no final state: COMMIT of any stored copy makes a message visible, whatever was said before. A check
re-appends the half, and an end closes the copy it names only. After ``checks`` checks the half is discarded: nobody is
asked about it any more, while its handles still work.
"""

from collections.abc import Iterator

from outbox.verdict import Confirmation, Next, Sighting
from tests.model.rules import Rules
from tests.model.steps import FAULT, PROGRESS, Stepped, Turn
from tests.model.world import (
    NO_HALF,
    NOBODY,
    Age,
    Bounds,
    Commit,
    Half,
    Phase,
    Role,
    Visible,
    World,
    token_of,
    with_actor,
    with_half,
)


def sightings(world: World, half: int, rules: Rules) -> Iterator[tuple[Sighting, bool]]:
    """What ``find`` may say, and whether it is what a healthy broker says."""
    visible = world.visible
    behind = visible.number > 0 and not visible.indexed
    if behind and rules.lag_known:
        yield Sighting.CANNOT_TELL, True
        return
    found = visible.half == half and visible.indexed and not visible.expired
    outlived = world.row.age is Age.OUTLIVED and rules.reach_known
    yield Sighting.VISIBLE if found else Sighting.EXPIRED if outlived else Sighting.ABSENT, True
    yield Sighting.CANNOT_TELL, False


def sent(turn: Turn) -> World:
    """COMMIT is on the wire."""
    world, actor = turn.world, turn.actor
    breach = "sent COMMIT for a half after ROLLBACK" if world.halves[actor.half - 1].rolled_back else ""
    wire = (*world.wire, Commit(actor.half, actor.handle, turn.place))
    return turn.then(Phase.COMMIT_SENT, world._replace(wire=wire, breach=breach))


def ended(turn: Turn, label: str, *, rollback: bool, breach: str = "") -> Iterator[Stepped]:
    """The actor is done, and has told the broker ROLLBACK or nothing.

    ROLLBACK arrives at once or never: one that is late only closes a copy later, and until then the world is the one
    in which it was lost.
    """
    done = turn.then(Phase.IDLE)._replace(breach=breach)
    if not rollback:
        yield label, PROGRESS, done
        return
    number = turn.actor.half
    # Said on the word of a claim that a crash of the database may take back, it is not held against a later COMMIT:
    # the broker carries that out all the same.
    told = done.halves[number - 1]._replace(rolled_back=turn.world.durable is None)
    yield f"{label}; its ROLLBACK is lost", FAULT, with_half(done, number, told)
    closed = _closed(told, turn.actor.handle)
    yield f"{label}; rolls half #{number} back", PROGRESS, with_half(done, number, closed)


def _closed(half: Half, handle: int) -> Half:
    """With a removal record for the copy at ``handle``; older copies were superseded by the check that re-appended."""
    return half._replace(open=False) if handle == half.copies else half


def broker_steps(world: World, rules: Rules, bounds: Bounds) -> Iterator[Stepped]:
    """What the wire and the broker may do next."""
    for place in range(len(world.wire)):
        yield from _arrival(world, place, rules)
    for number, half in enumerate(world.halves, 1):
        if half.flying:
            yield from _half_arrival(world, number, half, bounds)
        if half.stored:
            yield from _checks(world, number, half, bounds)
            yield from _forgetting(world, number, half, bounds)
    yield from _index(world, bounds)


def _half_arrival(world: World, number: int, half: Half, bounds: Bounds) -> Iterator[Stepped]:
    stored = half._replace(flying=False, stored=True, open=True)
    there = with_half(world, number, stored)
    nowhere = with_half(world, number, half._replace(flying=False))
    sender = _attempt(world, number)
    if sender == NOBODY:
        yield f"half #{number} arrives", PROGRESS, there
        yield f"half #{number} is lost", FAULT, nowhere
        return
    yield f"half #{number} arrives and is answered", PROGRESS, with_actor(there, sender, Phase.HALF_STORED)
    yield f"half #{number} is not stored", FAULT, with_actor(nowhere, sender, Phase.HALF_NOT_STORED)
    # The request is still on its way, or was stored and only its answer is lost: nobody but the broker knows.
    yield f"half #{number} is not answered", FAULT, with_actor(world, sender, Phase.HALF_UNKNOWN)
    repeated = number + bounds.tokens
    if bounds.repeats_halves and number <= bounds.tokens and not world.halves[repeated - 1].stored:
        again = with_half(world, repeated, stored)
        yield f"half #{number} is sent again as #{repeated}", FAULT, again
        yield (
            f"half #{number} is sent again as #{repeated}, which is answered",
            FAULT,
            with_actor(again, sender, Phase.HALF_STORED, half=repeated),
        )


def _attempt(world: World, half: int) -> int:
    """The relay that waits for the answer to this half."""
    waiting = (i for i, it in enumerate(world.actors) if it.phase is Phase.HALF_SENT and it.half == half)
    return next(waiting, NOBODY)


def _arrival(world: World, place: int, rules: Rules) -> Iterator[Stepped]:
    commit = world.wire[place]
    left = world._replace(wire=(*world.wire[:place], *world.wire[place + 1 :]))
    name = f"COMMIT of half #{commit.half} at copy {commit.handle}"
    half = world.halves[commit.half - 1]
    if half.stored and commit.handle >= half.kept:
        done, confirmation = _made_visible(left, commit), Confirmation.CONFIRMED
    else:
        done, confirmation = left, Confirmation.GONE
    yield f"{name} arrives: {confirmation}", PROGRESS, answered(done, commit, confirmation, rules)
    if commit.sender != NOBODY:
        unanswered = answered(done, commit, Confirmation.UNANSWERED, rules)
        yield f"{name} arrives: {confirmation}, the answer is lost", FAULT, unanswered
        yield f"{name} is denied", FAULT, answered(left, commit, Confirmation.DENIED, rules)
    yield f"{name} is lost", FAULT, answered(left, commit, Confirmation.UNANSWERED, rules)


def _made_visible(world: World, commit: Commit) -> World:
    half = _closed(world.halves[commit.half - 1], commit.handle)
    count = min(2, world.visible.number + 1)
    visible = Visible(count, commit.half, indexed=False, expired=False)
    return with_half(world, commit.half, half)._replace(visible=visible)


def answered(world: World, commit: Commit, confirmation: Confirmation, rules: Rules) -> World:
    """The sender, if it still waits, has the broker's answer and acts on it in a step of its own."""
    sender = commit.sender
    if sender == NOBODY or world.actors[sender].phase is not Phase.COMMIT_SENT:
        return world
    role = world.actors[sender].role
    if confirmation is Confirmation.GONE and role is Role.RECONCILER:
        return with_actor(world, sender, Phase.GONE)
    if confirmation is Confirmation.DENIED and role is Role.RECONCILER:
        return with_actor(world, sender, Phase.POSTPONE)
    settles = rules.after_commit(confirmation) is Next.SETTLE
    return with_actor(world, sender, Phase.SETTLE if settles else Phase.IDLE)


def _checks(world: World, number: int, half: Half, bounds: Bounds) -> Iterator[Stepped]:
    if not half.open:
        forgotten = with_half(world, number, half._replace(open=True))
        yield f"the broker crashes and forgets that half #{number} was ended", FAULT, forgotten
        return
    if half.copies == bounds.checks:
        return
    asked = with_half(world, number, half._replace(copies=half.copies + 1))
    yield f"a check of half #{number} is lost", FAULT, asked
    for place, actor in enumerate(world.actors):
        if actor.role is Role.CHECK_BACK and actor.phase is Phase.IDLE:
            told = with_actor(asked, place, Phase.ASKED, half=number, handle=half.copies + 1)
            yield f"the broker asks check-back @{place} about half #{number}", FAULT, told
            return


def _forgetting(world: World, number: int, half: Half, bounds: Bounds) -> Iterator[Stepped]:
    """The copies expire from the commit log, oldest first."""
    row = world.row
    inert = number not in (row.half, world.visible.half) and token_of(number, bounds) != row.token
    if not inert and not bounds.halves_expire:
        return
    if inert or half.kept == half.copies:
        gone = NO_HALF._replace(rolled_back=half.rolled_back)
        yield f"half #{number} expires", PROGRESS if inert else FAULT, with_half(world, number, gone)
    else:
        younger = with_half(world, number, half._replace(kept=half.kept + 1))
        yield f"copy {half.kept} of half #{number} expires", FAULT, younger


def _index(world: World, bounds: Bounds) -> Iterator[Stepped]:
    visible = world.visible
    if visible.number and not visible.indexed:
        yield "the index catches up", PROGRESS, world._replace(visible=visible._replace(indexed=True))
    elif bounds.decisions_age and visible.number and world.row.age is Age.OUTLIVED and not visible.expired:
        yield "the message expires", FAULT, world._replace(visible=visible._replace(expired=True))
