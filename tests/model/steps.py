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

#: Label, kind, and the world after it; in the label, @ stands before an actor and # before a half (``explain``).
Stepped = tuple[str, Kind, World]


class Turn(NamedTuple):
    """One actor in one world."""

    world: World
    place: int
    actor: Actor
    rules: Rules
    bounds: Bounds

    def then(
        self,
        phase: Phase,
        world: World | None = None,
        *,
        half: int | None = None,
        handle: int | None = None,
        window: bool = False,
    ) -> World:
        """The world (given, or this one) with the actor in another phase."""
        return with_actor(world or self.world, self.place, phase, half=half, handle=handle, window=window)
