"""What a step is, and what an actor sees when it is its turn."""

from enum import IntEnum
from typing import NamedTuple

from tests.model.rules import Rules
from tests.model.world import Actor, Bounds, Phase, World, with_actor


class Kind(IntEnum):
    """Whether a good end may lean on a step."""

    #: Actors that do their work, a network that carries, clocks that run: what a good end is reached by.
    PROGRESS = 0
    #: Deaths, losses, expiry, operators, and checks by the broker: possible, and no good end depends on them.
    FAULT = 1


PROGRESS = Kind.PROGRESS
FAULT = Kind.FAULT

#: Label, kind, and the world after it.
Stepped = tuple[str, Kind, World]


class Turn(NamedTuple):
    """One actor in one world."""

    world: World
    index: int
    actor: Actor
    rules: Rules
    bounds: Bounds

    def then(self, phase: Phase, world: World | None = None, **changes: int) -> World:
        """The world (given, or this one) with the actor in another phase."""
        world = world or self.world
        return world._replace(actors=with_actor(world, self.index, phase, **changes))
