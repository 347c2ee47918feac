"""A counter-example in words, with names that last from its first step to its last."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.model.actors import successors
from tests.model.canonical import canonical, names_in
from tests.model.rules import Rules
from tests.model.world import Bounds, World

_NAMES = re.compile(r"([@#])(\d+)")


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest way into trouble, in words."""

    what: str
    steps: list[str]

    def __str__(self) -> str:
        return "\n".join([f"{self.what}, after:", *(f"{i:3}. {step}" for i, step in enumerate(self.steps, 1))])


def explained(worlds: Sequence[World], rules: Rules, bounds: Bounds) -> list[str]:
    """The steps from each world to the next; the worlds are canonical, so actors and tokens change names in between."""
    names = _Names(list(range(len(worlds[0].actors))), list(range(1, bounds.tokens + 1)))
    steps = []
    for world, target in pairwise(worlds):
        found = ((label, after) for label, _, after in successors(world, rules, bounds))
        label, after = next((label, after) for label, after in found if canonical(after, bounds) == target)
        steps.append(names.put_into(label))
        names.follow(*names_in(after, bounds))
    return steps


@dataclass(slots=True)
class _Names:
    """The lasting name of each actor and token, by its place in the world at hand."""

    actors: list[int]
    tokens: list[int] = field(default_factory=list)

    def put_into(self, label: str) -> str:
        return _NAMES.sub(lambda found: self._lasting(found[1], int(found[2])), label)

    def follow(self, actors: Sequence[int], tokens: Sequence[int]) -> None:
        self.actors = [self.actors[place] for place in actors]
        self.tokens = [self.tokens[token - 1] for token in tokens]

    def _lasting(self, what: str, place: int) -> str:
        if what == "@":
            return str(self.actors[place])
        first = place <= len(self.tokens)
        return str(self.tokens[place - 1]) if first else f"{self.tokens[place - len(self.tokens) - 1]}b"
