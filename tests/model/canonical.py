"""Symmetry: worlds that differ only in the names of like actors and of tokens are one."""

from outbox.lifecycle import State
from tests.model.world import NO_HALF, NOBODY, NONE, Bounds, Phase, Row, World, token_of, used

_WAITING = Phase.COMMIT_SENT


def canonical(world: World, bounds: Bounds) -> World:
    """A world that behaves like this one, and the same one for most that do."""
    known = _forgetful(world, bounds)
    sorted_actors = _with_actors(known, _actor_order(known))
    return _with_tokens(sorted_actors, _token_order(sorted_actors, bounds), bounds)


def names_in(world: World, bounds: Bounds) -> tuple[list[int], list[int]]:
    """What the actors and the tokens of the canonical world are called in this one, in order."""
    known = _forgetful(world, bounds)
    actors = _actor_order(known)
    return actors, _token_order(_with_actors(known, actors), bounds)


def _forgetful(world: World, bounds: Bounds) -> World:
    """Without what nobody can know any more: lease ids of the dead, addressees that do not wait, unused tokens."""
    actors = world.actors
    row, durable = _known_holder(world.row, world), world.durable
    if durable is not None:
        durable = _known_holder(durable, world)
    wire = world.wire
    if wire:
        wire = tuple(
            commit._replace(sender=NOBODY)
            if commit.sender != NOBODY and actors[commit.sender].phase is not _WAITING
            else commit
            for commit in wire
        )
    halves = world.halves
    if row.state is State.DELIVERED:
        # Whatever was said of it: one more COMMIT is a second message now, and that is looked for anyway.
        halves = tuple(half._replace(rolled_back=False) if half.rolled_back else half for half in halves)
    if any(not (half.stored or half.flying) and half != NO_HALF for half in halves):
        live = used(world, bounds)
        halves = tuple(half if token_of(number, bounds) in live else NO_HALF for number, half in enumerate(halves, 1))
    return world._replace(row=row, durable=None if durable == row else durable, wire=wire, halves=halves)


def _known_holder(row: Row, world: World) -> Row:
    known = row.holder != NOBODY and world.actors[row.holder].phase is not Phase.IDLE
    return row if known or row.holder == NOBODY else row._replace(holder=NOBODY)


def _actor_order(world: World) -> list[int]:
    """Like actors by what they remember, then by whether the row's lease is theirs."""
    holder = world.row.holder
    keyed = sorted((actor, index == holder, index) for index, actor in enumerate(world.actors))
    return [index for _, _, index in keyed]


def _with_actors(world: World, order: list[int]) -> World:
    if order == sorted(order):
        return world._replace(wire=tuple(sorted(world.wire))) if len(world.wire) > 1 else world
    place = {old: new for new, old in enumerate(order)} | {NOBODY: NOBODY}
    durable = world.durable
    return world._replace(
        row=world.row._replace(holder=place[world.row.holder]),
        durable=durable and durable._replace(holder=place[durable.holder]),
        wire=tuple(sorted(commit._replace(sender=place[commit.sender]) for commit in world.wire)),
        actors=tuple(world.actors[index] for index in order),
    )


def _token_order(world: World, bounds: Bounds) -> list[int]:
    """In the order in which the row, the messages, the actors, the wire and the broker name them."""
    row, durable, tokens = world.row, world.durable, bounds.tokens
    named = [row.half, row.token, world.visible.half, *(actor.half for actor in world.actors)]
    named += (commit.half for commit in world.wire)
    if durable is not None:
        named += (durable.half, durable.token)
    order = dict.fromkeys(half if half <= tokens else half - tokens for half in named if half)
    if len(order) < tokens:
        rest = [token for token in range(1, tokens + 1) if token not in order]
        order.update(dict.fromkeys(sorted(rest, key=lambda token: world.halves[token - 1], reverse=True)))
    return list(order)


def _with_tokens(world: World, order: list[int], bounds: Bounds) -> World:
    if order == sorted(order):
        return world
    tokens = bounds.tokens
    places = {NONE: NONE} | {old: new for new, old in enumerate(order, 1)}
    if bounds.repeats_halves:
        places |= {old + tokens: new + tokens for new, old in enumerate(order, 1)}
    halves = list(world.halves)
    for number, half in enumerate(world.halves, 1):
        halves[places[number] - 1] = half
    durable = world.durable
    return world._replace(
        row=world.row._replace(token=places[world.row.token], half=places[world.row.half]),
        durable=durable and durable._replace(token=places[durable.token], half=places[durable.half]),
        halves=tuple(halves),
        wire=tuple(sorted(commit._replace(half=places[commit.half]) for commit in world.wire)),
        actors=tuple(actor._replace(half=places[actor.half]) for actor in world.actors),
        visible=world.visible._replace(half=places[world.visible.half]),
    )
