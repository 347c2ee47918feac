"""The steps of a relay's attempt, from its claim to its decision."""

from collections.abc import Iterator

from outbox.verdict import Step
from tests.model import moves
from tests.model.steps import FAULT, PROGRESS, Stepped, Turn
from tests.model.world import Phase, Row, World, used, with_half


def claim(turn: Turn) -> Iterator[Stepped]:
    """A fresh token and a lease, in a transaction that a crash of the database may lose."""
    world, bounds = turn.world, turn.bounds
    free = [token for token in range(1, bounds.tokens + 1) if token not in used(world, bounds)]
    if not free or not moves.claimable(world.row):
        return
    row = world.row._replace(token=free[0], holder=turn.index, live=True)
    claimed = moves.written(world, row, bounds, durable=False, by=turn.index)
    yield "claims", PROGRESS, turn.then(Phase.CLAIMED, claimed, half=free[0])


def claimed(turn: Turn) -> Iterator[Stepped]:
    """One wire attempt per token."""
    half = turn.world.halves[turn.actor.half - 1]._replace(flying=True)
    flying = turn.world._replace(halves=with_half(turn.world, turn.actor.half, half))
    yield "sends its half", PROGRESS, turn.then(Phase.HALF_SENT, flying)
    yield "gives the row back: outage", FAULT, _gives_back(turn, adoptable=False, delay=True)
    yield "gives the row back: it stops", FAULT, _gives_back(turn, adoptable=False, delay=False)
    yield from renewal(turn)


def half_unknown(turn: Turn) -> Iterator[Stepped]:
    """The half may be stored: the token stays, so that a check-back may adopt it."""
    yield "gives the row back, adoptable", PROGRESS, _gives_back(turn, adoptable=True, delay=True)


def half_refused(turn: Turn) -> Iterator[Stepped]:
    """Counted, or one too many."""
    yield "gives the row back: refusal", PROGRESS, _gives_back(turn, adoptable=False, delay=True)
    yield "buries the row", FAULT, _if_own(turn, moves.buried(turn.world.row, turn.rules))


def half_stored(turn: Turn) -> Iterator[Stepped]:
    """The decision; whoever loses asks the verdict what to do with the half."""
    world, half, bounds = turn.world, turn.actor.half, turn.bounds
    if moves.own_attempt(world.row, turn):
        row = moves.decided(world.row, turn)
        chosen = moves.written(world, row, bounds, by=turn.index)
        yield "decides", PROGRESS, turn.then(Phase.COMMIT, chosen, window=True)
    else:
        answer = turn.rules.verdict(moves.row_view(world.row, bounds), moves.half_view(half, bounds))
        lost = answer is Step.ROLLBACK
        yield f"loses the decision: {answer}", PROGRESS, turn.then(Phase.ROLLBACK if lost else Phase.IDLE)
    yield from renewal(turn)


def renewal(turn: Turn) -> Iterator[Stepped]:
    """A lease that ran out but was not taken is as good as new."""
    row = turn.world.row
    if not row.live and moves.own_attempt(row, turn):
        renewed = moves.written(turn.world, row._replace(live=True), turn.bounds, durable=False, by=turn.index)
        yield "renews its lease", FAULT, renewed


def _gives_back(turn: Turn, *, adoptable: bool, delay: bool) -> World:
    return _if_own(turn, moves.given_back(turn.world.row, adoptable=adoptable, delay=delay))


def _if_own(turn: Turn, row: Row) -> World:
    own = moves.own_attempt(turn.world.row, turn)
    after = moves.written(turn.world, row, turn.bounds, by=turn.index) if own else turn.world
    return turn.then(Phase.IDLE, after)
