"""Symmetry: worlds that differ only in the names of like actors and of tokens are one."""

from tests.model.world import NO_HALF, NOBODY, NONE, Bounds, Phase, Row, World, token_of, used

_WAITING = Phase.COMMIT_SENT


def canonical(world: World, bounds: Bounds) -> World:
    """The representative of all worlds that behave like this one."""
    return _tokens_in_order(_actors_in_order(_forgetful(world, bounds)), bounds)


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
    live = used(world, bounds)
    halves = tuple(
        half if half is NO_HALF or token_of(number, bounds) in live else NO_HALF
        for number, half in enumerate(world.halves, 1)
    )
    return world._replace(row=row, durable=None if durable == row else durable, wire=wire, halves=halves)


def _known_holder(row: Row, world: World) -> Row:
    known = row.holder != NOBODY and world.actors[row.holder].phase is not Phase.IDLE
    return row if known or row.holder == NOBODY else row._replace(holder=NOBODY)


def _actors_in_order(world: World) -> World:
    """Like actors sorted by what they remember, then by whether the row's lease is theirs."""
    holder = world.row.holder
    keyed = sorted((actor, index == holder, index) for index, actor in enumerate(world.actors))
    order = [index for _, _, index in keyed]
    if order == sorted(order):
        return world._replace(wire=tuple(sorted(world.wire))) if len(world.wire) > 1 else world
    place = {old: new for new, old in enumerate(order)} | {NOBODY: NOBODY}
    durable = world.durable
    return world._replace(
        row=world.row._replace(holder=place[holder]),
        durable=durable and durable._replace(holder=place[durable.holder]),
        wire=tuple(sorted(commit._replace(sender=place[commit.sender]) for commit in world.wire)),
        actors=tuple(world.actors[index] for index in order),
    )


def _tokens_in_order(world: World, bounds: Bounds) -> World:
    """Tokens numbered in the order in which the row, the messages, the actors, the wire and the broker name them."""
    named = [world.row.half, world.row.token, world.visible.half]
    named += [actor.half for actor in world.actors] + [commit.half for commit in world.wire]
    if world.durable is not None:
        named += [world.durable.half, world.durable.token]
    found: dict[int, int] = {}
    for half in named:
        if half != NONE:
            found.setdefault(token_of(half, bounds), len(found) + 1)
    rest = [token for token in range(1, bounds.tokens + 1) if token not in found]
    rest.sort(key=lambda token: world.halves[token - 1], reverse=True)
    for token in rest:
        found[token] = len(found) + 1
    if all(old == new for old, new in found.items()):
        return world
    return _renumbered(world, found, bounds.tokens)


def _renumbered(world: World, found: dict[int, int], tokens: int) -> World:
    places = {NONE: NONE} | found
    if len(world.halves) > tokens:
        places |= {old + tokens: new + tokens for old, new in found.items()}
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
