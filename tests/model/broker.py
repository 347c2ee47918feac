"""The broker and the wire: halves at offsets, COMMITs that are late or lost, look-ups, checks, forgetting.

The broker keeps no final state: COMMIT of any stored copy makes a message visible, whatever was said before. A check
re-appends the half, and an end closes the copy it names only. After ``checks`` checks the half is discarded: asked about
no more, while its handles still work.
"""

from collections.abc import Iterator

from outbox.verdict import Confirmation, Next, Sighting
from tests.model.rules import Rules
from tests.model.steps import FAULT, PROGRESS, Stepped, Turn
from tests.model.world import (
    NO_HALF,
    NOBODY,
    Actor,
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
    behind = visible.count > 0 and not visible.indexed
    if behind and rules.lag_known:
        yield Sighting.CANNOT_TELL, True
        return
    found = visible.half == half and visible.indexed and not visible.expired
    yield Sighting.VISIBLE if found else Sighting.ABSENT, True
    yield Sighting.CANNOT_TELL, False


def sent(turn: Turn) -> World:
    """COMMIT is on the wire."""
    world, actor = turn.world, turn.actor
    breach = "sent COMMIT for a half after ROLLBACK" if world.halves[actor.half - 1].rolled_back else ""
    wire = (*world.wire, Commit(actor.half, actor.handle, turn.index))
    return turn.then(Phase.COMMIT_SENT, world._replace(wire=wire, breach=breach))


def rolled_back(world: World, actor: Actor) -> Iterator[Stepped]:
    """ROLLBACK was written.

    It arrives at once or never: one that is late only closes a copy later, and until then the world is the one in
    which it was lost.
    """
    half = world.halves[actor.half - 1]._replace(rolled_back=True)
    yield "sends ROLLBACK, which is lost", FAULT, world._replace(halves=with_half(world, actor.half, half))
    half = _closed(half, actor.handle)
    yield "sends ROLLBACK", PROGRESS, world._replace(halves=with_half(world, actor.half, half))


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
    there = world._replace(halves=with_half(world, number, stored))
    nowhere = world._replace(halves=with_half(world, number, half._replace(flying=False)))
    sender = _attempt(world, number)
    if sender == NOBODY:
        yield f"half {number} arrives", PROGRESS, there
        yield f"half {number} is lost", FAULT, nowhere
        return
    yield f"half {number} arrives and is answered", PROGRESS, _to(there, sender, Phase.HALF_STORED)
    yield f"half {number} is refused", FAULT, _to(nowhere, sender, Phase.HALF_REFUSED)
    # The request is still on its way, or was stored and only its answer is lost: nobody but the broker knows.
    yield f"half {number} is not answered", FAULT, _to(world, sender, Phase.HALF_UNKNOWN)
    repeated = number + bounds.tokens
    if bounds.repeats_halves and number <= bounds.tokens and not world.halves[repeated - 1].stored:
        again = world._replace(halves=with_half(world, repeated, stored))
        yield f"half {number} is sent again as {repeated}", FAULT, again
        yield (
            f"half {number} is sent again as {repeated}, which is answered",
            FAULT,
            _to(again, sender, Phase.HALF_STORED, half=repeated),
        )


def _attempt(world: World, half: int) -> int:
    """The relay that waits for the answer to this half."""
    waiting = (i for i, it in enumerate(world.actors) if it.phase is Phase.HALF_SENT and it.half == half)
    return next(waiting, NOBODY)


def _to(world: World, index: int, phase: Phase, **changes: int) -> World:
    return world._replace(actors=with_actor(world, index, phase, **changes))


def _arrival(world: World, place: int, rules: Rules) -> Iterator[Stepped]:
    commit = world.wire[place]
    left = world._replace(wire=(*world.wire[:place], *world.wire[place + 1 :]))
    name = f"COMMIT of half {commit.half} at copy {commit.handle}"
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
    count = min(2, world.visible.count + 1)
    visible = Visible(count, commit.half, indexed=False, expired=False)
    return world._replace(halves=with_half(world, commit.half, half), visible=visible)


def answered(world: World, commit: Commit, confirmation: Confirmation, rules: Rules) -> World:
    """The sender, if it still waits, has the broker's answer and acts on it in a step of its own."""
    sender = commit.sender
    if sender == NOBODY or world.actors[sender].phase is not Phase.COMMIT_SENT:
        return world
    if confirmation is Confirmation.GONE and world.actors[sender].role is Role.RECONCILER:
        return _to(world, sender, Phase.GONE)
    settles = rules.after_commit(confirmation) is Next.SETTLE
    return _to(world, sender, Phase.SETTLE if settles else Phase.IDLE)


def _checks(world: World, number: int, half: Half, bounds: Bounds) -> Iterator[Stepped]:
    if not half.open:
        yield f"the broker forgets that half {number} was ended", FAULT, _but(world, number, half._replace(open=True))
        return
    if half.copies == bounds.checks:
        return
    asked = _but(world, number, half._replace(copies=half.copies + 1))
    yield f"a check of half {number} is lost", FAULT, asked
    for index, actor in enumerate(world.actors):
        if actor.role is Role.CHECK_BACK and actor.phase is Phase.IDLE:
            told = _to(asked, index, Phase.ASKED, half=number, handle=half.copies + 1)
            yield f"the broker asks check-back {index} about half {number}", FAULT, told
            return


def _forgetting(world: World, number: int, half: Half, bounds: Bounds) -> Iterator[Stepped]:
    """The copies expire from the commit log, oldest first."""
    row = world.row
    inert = number not in (row.half, world.visible.half) and token_of(number, bounds) != row.token
    if not inert and not bounds.expiry:
        return
    if inert or half.kept == half.copies:
        gone = NO_HALF._replace(rolled_back=half.rolled_back)
        yield f"half {number} expires", PROGRESS if inert else FAULT, _but(world, number, gone)
    else:
        yield f"copy {half.kept} of half {number} expires", FAULT, _but(world, number, half._replace(kept=half.kept + 1))


def _but(world: World, number: int, half: Half) -> World:
    return world._replace(halves=with_half(world, number, half))


def _index(world: World, bounds: Bounds) -> Iterator[Stepped]:
    visible = world.visible
    if visible.count and not visible.indexed:
        yield "the index catches up", PROGRESS, world._replace(visible=visible._replace(indexed=True))
    elif bounds.expiry and visible.count and not world.row.recent and not visible.expired:
        yield "the message expires", FAULT, world._replace(visible=visible._replace(expired=True))
