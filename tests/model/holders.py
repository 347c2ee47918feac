"""The steps of whoever carries a decision out: the relay that made it, a check-back, the reconciler."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from outbox.verdict import Next, Step
from tests.model import moves
from tests.model.broker import ended, sent, sightings
from tests.model.steps import FAULT, PROGRESS, Stepped, Turn
from tests.model.world import Age, Phase, Role, Row, World

_ANSWERS: Final[Mapping[Step, Phase]] = MappingProxyType(
    {
        Step.ADOPT: Phase.ADOPT,
        Step.TAKE_OVER: Phase.TAKE_OVER,
    }
)
_NEXT: Final[Mapping[Next, Phase]] = MappingProxyType(
    {
        Next.SETTLE: Phase.SETTLE,
        Next.COMMIT: Phase.COMMIT,
        Next.WAIT: Phase.IDLE,
        Next.REOPEN: Phase.REOPEN,
        Next.GIVE_UP: Phase.GIVE_UP,
    }
)
#: A check-back ends the copy it was asked about, and leaves giving up to the reconciler.
_OF_CHECK_BACK: Final[Mapping[Phase, Phase]] = MappingProxyType(
    {Phase.SETTLE: Phase.SETTLE_LEFTOVER, Phase.GIVE_UP: Phase.IDLE}
)


def asked(turn: Turn) -> Iterator[Stepped]:
    """The check-back reads the row; what it does next, it does in another transaction."""
    view = moves.row_view(turn.world.row, turn.bounds)
    answer = turn.rules.verdict(view, moves.half_view(turn.actor.half, turn.bounds))
    breach = "answered a check of a half that has no row" if view is None and answer is not Step.UNKNOWN else ""
    label = f"reads the row: {answer}"
    if answer is Step.COMMIT:
        # Said only of a row that is presumed delivered, and needs no lease; no transport of this model presumes.
        yield f"{label}; answers so", PROGRESS, sent(turn)
    elif answer in _ANSWERS:
        yield label, PROGRESS, turn.then(_ANSWERS[answer], turn.world._replace(breach=breach))
    else:
        yield from ended(turn, label, rollback=answer is Step.ROLLBACK, breach=breach)


def adopt(turn: Turn) -> Iterator[Stepped]:
    """pending -> committed with the half of the check."""
    row = moves.adopted(turn.world.row, turn)
    if row is turn.world.row:
        yield "comes too late to adopt", PROGRESS, turn.then(Phase.ASKED)
    else:
        chosen = moves.written(turn.world, row, turn.bounds, by=turn.place)
        yield "adopts the half", PROGRESS, _holding(turn, chosen)


def take_over(turn: Turn) -> Iterator[Stepped]:
    """The statement compares the lease alone, so the row may name another half by now: then it is left alone."""
    if not moves.may_take_over(turn.world.row, turn.rules):
        yield "comes too late to take over", PROGRESS, turn.then(Phase.ASKED)
        return
    taken = _taken_over(turn)
    if turn.rules.half_compared and taken.row.half != turn.actor.half:
        yield "takes the lease over and finds another half", PROGRESS, turn.then(Phase.ASKED, taken)
    else:
        yield "takes the commit lease over", PROGRESS, _holding(turn, taken)


def reconcile(turn: Turn) -> Iterator[Stepped]:
    """The reconciler works with the half and the handle that the row names."""
    if moves.may_take_over(turn.world.row, turn.rules):
        taken = _taken_over(turn)
        held = _holding(turn, taken, half=taken.row.half, handle=taken.row.handle)
        yield "takes the commit lease over", PROGRESS, held


def _taken_over(turn: Turn) -> World:
    row = moves.taken_over(turn.world.row, turn)
    return moves.written(turn.world, row, turn.bounds, durable=turn.rules.take_over_durable, by=turn.place)


def _holding(turn: Turn, world: World, *, half: int | None = None, handle: int | None = None) -> World:
    phase = Phase.LOOK_UP if turn.rules.look_up_first else Phase.COMMIT
    return turn.then(phase, world, half=half, handle=handle, window=True)


def look_up(turn: Turn) -> Iterator[Stepped]:
    """Before a COMMIT that may be a second one."""
    for sighting, healthy in sightings(turn.world, _named(turn), turn.rules):
        phase = _NEXT[turn.rules.after_look_up(sighting)]
        if turn.actor.role is Role.CHECK_BACK:
            phase = _OF_CHECK_BACK.get(phase, phase)
        yield f"looks half #{_named(turn)} up: {sighting}", PROGRESS if healthy else FAULT, turn.then(phase)


def gone(turn: Turn) -> Iterator[Stepped]:
    """The broker does not find the half at its handle any more."""
    for sighting, healthy in sightings(turn.world, turn.actor.half, turn.rules):
        phase = _NEXT[turn.rules.after_gone(sighting, decided_recently=turn.world.row.age is Age.YOUNG)]
        yield f"looks half #{turn.actor.half} up again: {sighting}", PROGRESS if healthy else FAULT, turn.then(phase)


def commit(turn: Turn) -> Iterator[Stepped]:
    """COMMIT, at most once per lease, while the window is open by the holder's own clock."""
    rules, half = turn.rules, turn.actor.half
    window = turn.actor.window if rules.lease_id_compared else turn.world.row.live
    if window or not (rules.window and rules.commit_lease):
        yield f"sends COMMIT of half #{half}", PROGRESS, sent(turn)
    else:
        yield "sends nothing: its window is closed", PROGRESS, turn.then(Phase.IDLE)


def settle(turn: Turn) -> Iterator[Stepped]:
    """Delivered; a check-back that found the message visible ends the copy it was asked about."""
    row = moves.settled(turn.world.row, _named(turn))
    after = turn.world if row is turn.world.row else moves.written(turn.world, row, turn.bounds, durable=False)
    leftover = turn.actor.phase is Phase.SETTLE_LEFTOVER
    yield from ended(turn._replace(world=after), "settles", rollback=leftover)


def _named(turn: Turn) -> int:
    """The half that is looked up and settled: the actor's own, unless it works with whatever the row names."""
    return turn.actor.half if turn.rules.half_compared else turn.world.row.half


def reopen(turn: Turn) -> Iterator[Stepped]:
    """A new attempt may publish the row."""
    yield "reopens the row", PROGRESS, _end(turn, moves.reopened(turn.world.row, turn))


def give_up(turn: Turn) -> Iterator[Stepped]:
    """An operator decides."""
    yield "gives the row up", PROGRESS, _end(turn, moves.given_up(turn.world.row, turn))


def _end(turn: Turn, row: Row) -> World:
    after = turn.world if row is turn.world.row else moves.written(turn.world, row, turn.bounds, by=turn.place)
    return turn.then(Phase.IDLE, after)


def postpone(turn: Turn) -> Iterator[Stepped]:
    """The broker denies the COMMIT for a reason that repeating it does not mend."""
    yield "postpones the row", PROGRESS, _end(turn, moves.postponed(turn.world.row, turn))
