"""The steps of a relay's attempt, from its claim to its decision."""

from collections.abc import Iterator

from outbox.verdict import Step
from tests.model import moves
from tests.model.broker import ended
from tests.model.steps import FAULT, PROGRESS, Stepped, Turn
from tests.model.world import NO_HALF, NONE, Phase, Row, World, used, with_half


def claim(turn: Turn) -> Iterator[Stepped]:
    """A fresh token and a lease, in a transaction that a crash of the database may lose; then the half is sent.

    One step, since a relay that sleeps in between is no different from a half that is late.
    """
    world, bounds = turn.world, turn.bounds
    # The claim replaces the row's token, whose name is free then unless a half or somebody else has it.
    taken = used(world._replace(row=world.row._replace(token=NONE)), bounds)
    free = next((token for token in range(1, bounds.tokens + 1) if token not in taken), NONE)
    if not free or not moves.claimable(world.row):
        return
    row = world.row._replace(token=free, holder=turn.place, live=True)
    claimed = moves.written(world, row, bounds, durable=False, by=turn.place)
    sent = with_half(claimed, free, NO_HALF._replace(flying=True))
    yield f"claims and sends half #{free}", PROGRESS, turn.then(Phase.HALF_SENT, sent, half=free)


def half_unknown(turn: Turn) -> Iterator[Stepped]:
    """The half may be stored: the token stays, so that a check-back may adopt it."""
    yield "gives the row back, adoptable", PROGRESS, _gives_back(turn, adoptable=True, delay=True)


def half_not_stored(turn: Turn) -> Iterator[Stepped]:
    """Refused (one time too many: buried), or never sent because of an outage or because the relay stops."""
    yield "gives the row back", PROGRESS, _gives_back(turn, adoptable=False, delay=True)
    yield "gives the row back and stops", FAULT, _gives_back(turn, adoptable=False, delay=False)
    yield "buries the row", FAULT, _if_own(turn, moves.buried(turn.world.row, turn.rules))


def half_stored(turn: Turn) -> Iterator[Stepped]:
    """The decision; whoever loses asks the verdict what to do with the half."""
    world, half, bounds = turn.world, turn.actor.half, turn.bounds
    if moves.own_attempt(world.row, turn):
        row = moves.decided(world.row, turn)
        chosen = moves.written(world, row, bounds, by=turn.place)
        yield "decides", PROGRESS, turn.then(Phase.COMMIT, chosen, window=True)
    else:
        answer = turn.rules.verdict(moves.row_view(world.row, bounds), moves.half_view(half, bounds))
        yield from ended(turn, f"loses the decision: {answer}", rollback=answer is Step.ROLLBACK)
    yield from renewal(turn)


def renewal(turn: Turn) -> Iterator[Stepped]:
    """A lease that ran out but was not taken is as good as new."""
    row = turn.world.row
    if not row.live and moves.own_attempt(row, turn):
        renewed = moves.written(turn.world, row._replace(live=True), turn.bounds, durable=False, by=turn.place)
        yield "renews its lease", FAULT, renewed


def _gives_back(turn: Turn, *, adoptable: bool, delay: bool) -> World:
    return _if_own(turn, moves.given_back(turn.world.row, adoptable=adoptable, delay=delay))


def _if_own(turn: Turn, row: Row) -> World:
    own = moves.own_attempt(turn.world.row, turn)
    after = moves.written(turn.world, row, turn.bounds, by=turn.place) if own else turn.world
    return turn.then(Phase.IDLE, after)
