"""What happens to actors and rows from outside: deaths, the clock, operators, retention, a crash of the database."""

from collections.abc import Iterator

from outbox.lifecycle import Move, State, endings, sources_of
from outbox.verdict import Confirmation
from tests.model import moves
from tests.model.broker import answered
from tests.model.rules import Rules
from tests.model.steps import FAULT, PROGRESS, Stepped
from tests.model.world import NO_MESSAGE, NOBODY, Age, Bounds, Phase, World, with_actor

_PURGED = tuple(state for state in endings() if state is not State.DEAD)


def environment_steps(world: World, rules: Rules, bounds: Bounds) -> Iterator[Stepped]:
    """What may happen next without anybody's doing."""
    yield from _deaths(world)
    yield from _clock(world, rules, bounds)
    if bounds.operator:
        yield from _operator(world, rules, bounds)
    if bounds.retention and world.row.state in _PURGED:
        row = world.row._replace(state=None, token=0, half=0, handle=0, holder=NOBODY, live=False, age=Age.YOUNG)
        yield "retention deletes the row", FAULT, world._replace(row=row, durable=None)
    if world.durable is not None:
        yield "the database crashes", FAULT, world._replace(row=world.durable, durable=None)


def _deaths(world: World) -> Iterator[Stepped]:
    """A process that dies, or drops its work for any other reason, leaves only what database and broker know."""
    for index, actor in enumerate(world.actors):
        if actor.phase is not Phase.IDLE:
            yield f"{actor.role.name.lower()} @{index} dies", FAULT, with_actor(world, index, Phase.IDLE)


def _clock(world: World, rules: Rules, bounds: Bounds) -> Iterator[Stepped]:
    if world.row.live:
        yield "the lease is over", PROGRESS, _lease_over(world, rules)
    elif bounds.decisions_age and world.row.state in sources_of(Move.REOPEN) and world.row.age is not Age.OUTLIVED:
        older = Age(world.row.age + 1)
        yield f"the decision is {older.name}", FAULT, world._replace(row=world.row._replace(age=older))
    for index, actor in enumerate(world.actors):
        # Of a lease that the row does not know any more; the window of the row's own closes with it.
        if actor.window and not (world.row.live and world.row.holder == index):
            yield f"the window of @{index} closes", PROGRESS, _window_closed(world, index)


def _lease_over(world: World, rules: Rules) -> World:
    """All windows are closed, since none was opened later; a COMMIT that is still on its way dies."""
    over = world._replace(row=world.row._replace(live=False))
    if world.durable is not None:
        over = over._replace(durable=world.durable._replace(live=False))
    for index, actor in enumerate(over.actors):
        if actor.window:
            over = _window_closed(over, index)
    if not rules.commit_in_time:
        return over
    for commit in world.wire:
        over = answered(over, commit, Confirmation.UNANSWERED, rules)
    return over._replace(wire=())


def _window_closed(world: World, index: int) -> World:
    actor = world.actors[index]._replace(window=False)
    return world._replace(actors=(*world.actors[:index], actor, *world.actors[index + 1 :]))


def _operator(world: World, rules: Rules, bounds: Bounds) -> Iterator[Stepped]:
    cancelled = moves.cancelled(world.row, rules)
    if cancelled is not world.row:
        yield "an operator cancels the row", FAULT, moves.written(world, cancelled, bounds)
    requeued = moves.requeued(world.row, rules)
    if requeued is world.row:
        return
    after = moves.written(world, requeued, bounds)
    if world.row.lost_track:
        # The operator's own act: what was visible before it is not counted against the row any more.
        after = after._replace(visible=NO_MESSAGE)
    yield "an operator requeues the row", FAULT, after
