"""The writes to the row: compare-and-set as in ``outbox/store``; where nothing changes, the row is the same object."""

from outbox.lifecycle import Move, State, after, sources_of
from outbox.verdict import HalfView, RowView
from tests.model.rules import Rules
from tests.model.steps import Turn
from tests.model.world import NOBODY, NONE, Age, Bounds, Row, World, token_of

_CLAIMABLE = sources_of(Move.COMMIT)
_UNSETTLED = sources_of(Move.REOPEN)
_LEASE_IGNORED = "changed a row under a lease of somebody else"


def row_view(row: Row, bounds: Bounds) -> RowView | None:
    """The row as a verdict sees it."""
    if row.state is None:
        return None
    token = None if row.token == NONE else str(row.token)
    half = None if row.half == NONE else str(row.half)
    return RowView(row.state, token, half, lease_over=not row.live)


def half_view(half: int, bounds: Bounds) -> HalfView:
    """The half as a verdict sees it."""
    return HalfView(str(token_of(half, bounds)), str(half))


def _target(row: Row, move: Move) -> State | None:
    return None if row.state is None else after(row.state, move)


def written(world: World, row: Row, bounds: Bounds, *, durable: bool = True, by: int = NOBODY) -> World:
    """The world after a transaction; ``by``: whose right to do so rests on a lease."""
    old = world.row
    breach = _LEASE_IGNORED if old.live and by not in (NOBODY, old.holder) else ""
    if durable or not bounds.database_crash:
        return world._replace(row=row, durable=None, breach=breach)
    return world._replace(row=row, durable=world.durable or old, breach=breach)


def claimable(row: Row) -> bool:
    """Whether a relay may claim the row."""
    return row.state in _CLAIMABLE and not row.live


def own_attempt(row: Row, turn: Turn) -> bool:
    """Whether the row is pending under the actor's token and lease."""
    rules = turn.rules
    token = not rules.token_compared or row.token == token_of(turn.actor.half, turn.bounds)
    lease = not rules.lease_id_compared or row.holder == turn.place
    return row.state in _CLAIMABLE and token and lease


def decided(row: Row, turn: Turn) -> Row:
    """The row with the actor's half chosen, under a commit lease of its own; the caller has compared."""
    chosen = row._replace(half=turn.actor.half, handle=turn.actor.handle, age=Age.YOUNG)
    return taken_over(chosen, turn)._replace(state=_target(row, Move.COMMIT))


def adopted(row: Row, turn: Turn) -> Row:
    """The row with the half of an attempt that ran out chosen."""
    due = not (row.live and turn.rules.adopt_waits)
    same = row.token == token_of(turn.actor.half, turn.bounds)
    return decided(row, turn) if row.state in _CLAIMABLE and same and due else row


def may_take_over(row: Row, rules: Rules) -> bool:
    """Whether the commit lease is there for the taking."""
    return row.state in _UNSETTLED and not (row.live and rules.take_over_waits)


def taken_over(row: Row, turn: Turn) -> Row:
    """The row under a fresh commit lease."""
    return row._replace(holder=turn.place, live=turn.rules.commit_lease)


def settled(row: Row, half: int) -> Row:
    """Delivered, whoever says it."""
    if row.state not in _UNSETTLED or row.half != half:
        return row
    return row._replace(state=_target(row, Move.DELIVER), holder=NOBODY, handle=0)


def reopened(row: Row, turn: Turn) -> Row:
    """Back to be published by a new attempt; only for the holder."""
    to = _target(row, Move.REOPEN)
    return row if to is None or not _held(row, turn) else _fresh(row, to, turn.rules)


def given_up(row: Row, turn: Turn) -> Row:
    """Dead with an unknown outcome; only for the holder."""
    to = _target(row, Move.GIVE_UP)
    if to is None or not _held(row, turn):
        return row
    return row._replace(state=to, token=NONE, holder=NOBODY, live=False, lost_track=True)


def _held(row: Row, turn: Turn) -> bool:
    return row.holder == turn.place or not turn.rules.lease_id_compared


def postponed(row: Row, turn: Turn) -> Row:
    """Nobody acts on it for a while; only for the holder."""
    return row._replace(live=True) if row.state in _UNSETTLED and _held(row, turn) else row


def buried(row: Row, rules: Rules) -> Row:
    """Dead because the broker refused it too often; the caller has compared the attempt."""
    return _no_attempt(row, rules)._replace(state=_target(row, Move.BURY), live=False)


def given_back(row: Row, *, adoptable: bool, delay: bool) -> Row:
    """Pending without an attempt; the caller has compared the attempt."""
    token = row.token if adoptable else NONE
    return row._replace(token=token, holder=NOBODY, live=delay)


def cancelled(row: Row, rules: Rules) -> Row:
    """By an operator, whoever holds the lease."""
    to = _target(row, Move.CANCEL)
    return row if to is None else _no_attempt(row, rules)._replace(state=to, live=False)


def requeued(row: Row, rules: Rules) -> Row:
    """By an operator."""
    to = _target(row, Move.REQUEUE)
    return row if to is None else _fresh(row, to, rules)


def _fresh(row: Row, to: State, rules: Rules) -> Row:
    cleared = _no_attempt(row, rules)
    return cleared._replace(state=to, half=NONE, handle=0, live=False, age=Age.YOUNG, lost_track=False)


def _no_attempt(row: Row, rules: Rules) -> Row:
    return row._replace(token=NONE, holder=NOBODY) if rules.token_cleared else row
