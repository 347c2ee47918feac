"""A small model of one lane: producers, claims that park, endings that un-park, cancels; every interleaving of them.

A transaction runs one statement per step. A statement sees what is committed and what its own transaction wrote (READ
COMMITTED), skips rows that another transaction has locked, and each transaction may die before its commit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row that stands in the lane, or has."""

    is_open: bool = True
    parked: bool = False
    #: The claim that leases it, from 1; 0: none.
    holder: int = 0
    #: Whether the holder has found it to be the head.
    shipped: bool = False


class Step(StrEnum):
    """The next statement of a transaction."""

    IDLE = "idle"
    #: Producers.
    LINE_UP = "line up"
    INSERT = "insert"
    #: Claims.
    LOOK = "look"
    LOOK_AGAIN = "look again"
    #: Endings: the row is ended, and the lane is to go on.
    GO_ON = "go on"
    #: Both, behind their last look.
    LOCK = "lock"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol; each ``False`` leaves one thing out."""

    producers_lock: bool = True
    lock_before_id: bool = True
    heads_only: bool = True
    daemons_lock: bool = True
    look_after_lock: bool = True
    goes_on_in_the_transaction: bool = True
    sweep: bool = True


AS_BUILT = Rules()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Who takes part."""

    rows: int = 3
    producers: int = 2
    claims: int = 1
    endings: int = 1
    cancels: int = 1
    #: A cancel may be rolled back; what it leaves parked is found by the sweep.
    rollbacks: bool = False


class Transaction(NamedTuple):
    """One actor and its open transaction."""

    step: Step = Step.IDLE
    #: Its row; 0: none.
    row: int = 0
    #: What it has written: rows by id, not visible to others, and locked.
    written: tuple[tuple[int, Row], ...] = ()
    locked: frozenset[int] = frozenset()
    has_lock: bool = False


class World(NamedTuple):
    """What is committed, and the open transactions."""

    rows: tuple[Row | None, ...]
    next_id: int
    producers: tuple[Transaction, ...]
    claims: tuple[Transaction, ...]
    endings: tuple[Transaction, ...]
    cancels: tuple[Transaction, ...]
    #: Whether a row was shipped, or committed, behind one with a higher id.
    overtaken: bool = False


def initial(bounds: Bounds) -> World:
    """An empty lane."""
    idle = Transaction()
    return World(
        (None,) * bounds.rows,
        1,
        (idle,) * bounds.producers,
        (idle,) * bounds.claims,
        (idle,) * bounds.endings,
        (idle,) * bounds.cancels,
    )


def successors(world: World, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """Every world that one step leads to, and what the step is called."""
    actors = (("producers", _produce), ("claims", _claim), ("endings", _end), ("cancels", _cancel))
    for kind, act in actors:
        for place, transaction in enumerate(getattr(world, kind)):
            for what, after, now in act(world, transaction, rules, place + 1):
                yield f"{kind}: {what}", _put(after, kind, place, now)
            if transaction.step is not Step.IDLE and (kind != "cancels" or bounds.rollbacks):
                yield f"{kind}: {DEATH}", _put(world, kind, place, Transaction())
    yield from _time(world)
    if bounds.rollbacks and rules.sweep:
        yield from _sweep(world)


def _put(world: World, kind: str, place: int, now: Transaction) -> World:
    actors = getattr(world, kind)
    changed: dict[str, Any] = {kind: (*actors[:place], now, *actors[place + 1 :])}
    return world._replace(**changed)


DEATH = "dies before its commit"
_Acts = Iterator[tuple[str, World, Transaction]]


def _produce(world: World, it: Transaction, rules: Rules, me: int) -> _Acts:
    free = not any(other.has_lock for other in world.producers)
    if it.step is Step.IDLE and world.next_id <= len(world.rows):
        yield "begins", world, Transaction(Step.LINE_UP if rules.lock_before_id else Step.INSERT)
    elif it.step is Step.LINE_UP and (free or not rules.producers_lock):
        following = Step.INSERT if not it.row else Step.COMMIT
        yield "lines up", world, it._replace(step=following, has_lock=rules.producers_lock)
    elif it.step is Step.INSERT and world.next_id <= len(world.rows):
        row, after = world.next_id, world._replace(next_id=world.next_id + 1)
        step = Step.COMMIT if rules.lock_before_id else Step.LINE_UP
        yield f"inserts {row}", after, it._replace(step=step, row=row, written=((row, Row()),))
    elif it.step is Step.INSERT:
        yield "has nothing to add", world, Transaction()
    elif it.step is Step.COMMIT:
        late = any(row is not None and (row.shipped or not row.is_open) for row in world.rows[it.row :])
        yield f"commits {it.row}", _committed(world, it, overtaken=late), Transaction()


def _claim(world: World, it: Transaction, rules: Rules, me: int) -> _Acts:
    """Two transactions where it meets a follower: the second one, which parks it, begins without a row."""
    if it.step is Step.IDLE:
        yield from _candidates(world, it)
    elif it.step is Step.LOOK and (not rules.heads_only or _is_head(world, it)):
        yield "sees the head", world, _written(it, Row(holder=me, shipped=True))
    elif it.step is Step.LOOK:
        yield "leases it meanwhile", _with(world, it.row, Row(holder=me)), Transaction(Step.LOCK, it.row)
    elif it.step is Step.LOCK and _lock_is_free(world, rules):
        locked = it._replace(step=Step.LOOK_AGAIN, has_lock=rules.daemons_lock)
        yield "locks", world, locked if rules.look_after_lock else _parking(world, locked, me)
    elif it.step is Step.LOOK_AGAIN:
        shipped = _written(it, Row(holder=me, shipped=True))
        yield "looks again", world, shipped if _is_head(world, it) else _parking(world, it, me)
    elif it.step is Step.COMMIT:
        ahead = dict(it.written)[it.row].shipped and any(number < it.row for number, _ in standing(world, it))
        yield f"commits {it.row}", _committed(world, it, overtaken=ahead), Transaction()


def _candidates(world: World, it: Transaction) -> _Acts:
    for number, row in standing(world, it):
        if not row.parked and not row.holder and not _is_locked(world, number):
            yield f"locks {number}", world, Transaction(Step.LOOK, number, locked=frozenset({number}))


def _parking(world: World, it: Transaction, me: int) -> Transaction:
    """Parks its row, if the lease is still its own and nobody holds the row; else nothing."""
    row = world.rows[it.row - 1]
    if row != Row(holder=me) or _is_locked(world, it.row):
        return Transaction()
    return _written(it, Row(parked=True))._replace(locked=frozenset({it.row}))


def _end(world: World, it: Transaction, rules: Rules, me: int) -> _Acts:
    if it.step is Step.IDLE:
        for number, row in standing(world, it):
            if row.shipped and not _is_locked(world, number):
                yield f"ends {number}", world, _ending(number)
    else:
        yield from _go_on(world, it, rules)


def _cancel(world: World, it: Transaction, rules: Rules, me: int) -> _Acts:
    if it.step is Step.IDLE:
        for number, _ in standing(world, it):
            if not _is_locked(world, number):
                yield f"cancels {number}", world, _ending(number)
    else:
        yield from _go_on(world, it, rules)


def _ending(row: int) -> Transaction:
    return Transaction(Step.LOCK, row, ((row, Row(is_open=False)),), frozenset({row}))


def _go_on(world: World, it: Transaction, rules: Rules) -> _Acts:
    """What every ending does once its row is ended."""
    if it.step is Step.LOCK and not rules.goes_on_in_the_transaction and it.written:
        yield "commits first", _committed(world, it), Transaction(Step.LOCK, it.row)
    elif it.step is Step.LOCK and not rules.look_after_lock:
        yield "looks", world, _unparking(world, it)._replace(step=Step.GO_ON)
    elif it.step is Step.LOCK and _lock_is_free(world, rules):
        yield "locks", world, it._replace(step=Step.GO_ON, has_lock=rules.daemons_lock)
    elif it.step is Step.GO_ON and rules.look_after_lock:
        yield "looks", world, _unparking(world, it)
    elif it.step is Step.GO_ON and _lock_is_free(world, rules):
        yield "locks", world, it._replace(step=Step.COMMIT, has_lock=rules.daemons_lock)
    elif it.step is Step.COMMIT:
        yield f"commits {it.row}", _committed(world, it), Transaction()


def _unparking(world: World, it: Transaction) -> Transaction:
    """Un-parks the head, unless somebody holds it."""
    first = head(world, it)
    row = world.rows[first - 1] if first else None
    after = it._replace(step=Step.COMMIT)
    if row is None or not row.parked or _is_locked(world, first):
        return after
    return after._replace(written=(*it.written, (first, row._replace(parked=False))), locked=it.locked | {first})


def _time(world: World) -> Iterator[tuple[str, World]]:
    """Leases run out."""
    for number, row in standing(world, Transaction()):
        if row.holder and not _is_locked(world, number):
            yield f"the lease of {number} runs out", _with(world, number, Row())


def _sweep(world: World) -> Iterator[tuple[str, World]]:
    """As an ending, without a row of its own, in one step."""
    first = head(world, Transaction())
    row = world.rows[first - 1] if first else None
    if row is not None and row.parked and not _is_locked(world, first) and _lock_is_free(world, AS_BUILT):
        yield f"the sweep un-parks {first}", _with(world, first, row._replace(parked=False))


def _written(it: Transaction, row: Row) -> Transaction:
    return it._replace(step=Step.COMMIT, written=((it.row, row),))


def standing(world: World, seen_by: Transaction) -> list[tuple[int, Row]]:
    """The open rows as a transaction sees them."""
    own = dict(seen_by.written)
    seen = ((number, own.get(number, row)) for number, row in enumerate(world.rows, 1))
    return [(number, row) for number, row in seen if row is not None and row.is_open]


def head(world: World, seen_by: Transaction) -> int:
    """The first of them; 0: there is none."""
    return min((number for number, _ in standing(world, seen_by)), default=0)


def _is_head(world: World, it: Transaction) -> bool:
    return head(world, it) == it.row


def _is_locked(world: World, number: int) -> bool:
    return any(number in it.locked for it in (*world.claims, *world.endings, *world.cancels))


def _lock_is_free(world: World, rules: Rules) -> bool:
    daemons = (*world.claims, *world.endings, *world.cancels)
    return not rules.daemons_lock or not any(it.has_lock for it in daemons)


def _committed(world: World, it: Transaction, *, overtaken: bool = False) -> World:
    rows = list(world.rows)
    for number, row in it.written:
        rows[number - 1] = row
    return world._replace(rows=tuple(rows), overtaken=world.overtaken or overtaken)


def _with(world: World, number: int, row: Row) -> World:
    return world._replace(rows=(*world.rows[: number - 1], row, *world.rows[number:]))
