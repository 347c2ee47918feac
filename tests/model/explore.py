"""Breadth-first exploration: every reachable world, the shortest way to a broken property, and where no end is left."""

import gc
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.model.actors import successors
from tests.model.canonical import canonical
from tests.model.explain import Counterexample, explained
from tests.model.properties import PROPERTIES, ended
from tests.model.rules import AS_BUILT, Rules
from tests.model.steps import Kind
from tests.model.world import Bounds, Phase, World, initial

#: Says what is wrong with a world, or nothing.
Property = Callable[[World], str]
_FOREVER = "no good end can be reached from here"


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration found."""

    states: int
    steps: int
    depth: int
    #: States in which the row has ended well, by the state of the row.
    ends: Mapping[str, int]
    #: What some actor was about to do in some state.
    phases: frozenset[Phase]
    counterexample: Counterexample | None


@dataclass(slots=True)
class _Graph:
    """All worlds found so far, in the order of their distance; who led to whom."""

    numbers: dict[World, int] = field(default_factory=dict)
    worlds: list[World] = field(default_factory=list)
    parents: "array[int]" = field(default_factory=lambda: array("l"))
    #: Steps that a good end may lean on, as pairs (to, from).
    progress_to: "array[int]" = field(default_factory=lambda: array("l"))
    progress_from: "array[int]" = field(default_factory=lambda: array("l"))
    steps: int = 0

    def add(self, world: World, parent: int) -> tuple[int, bool]:
        """The world's number, and whether it is new."""
        number = self.numbers.setdefault(world, len(self.worlds))
        if number < len(self.worlds):
            return number, False
        self.worlds.append(world)
        self.parents.append(parent)
        return number, True

    def lead(self, source: int, target: int) -> None:
        """Notes a step that a good end may lean on."""
        self.progress_to.append(target)
        self.progress_from.append(source)


def explore(
    bounds: Bounds,
    rules: Rules = AS_BUILT,
    properties: Mapping[str, Property] = PROPERTIES,
    *,
    check_ends: bool = True,
    limit: int = 50_000_000,
) -> Report:
    """Explores everything within ``bounds``; stops at the first world that breaks a property."""
    with _without_collector():
        return _explored(_Graph(), bounds, rules, properties, check_ends=check_ends, limit=limit)


def _explored(
    graph: _Graph,
    bounds: Bounds,
    rules: Rules,
    properties: Mapping[str, Property],
    *,
    check_ends: bool,
    limit: int,
) -> Report:
    graph.add(canonical(initial(bounds), bounds), 0)
    for number in _numbers(graph, limit):
        for _, kind, after in successors(graph.worlds[number], rules, bounds):
            graph.steps += 1
            target, new = graph.add(after if after in graph.numbers else canonical(after, bounds), number)
            if kind is Kind.PROGRESS and check_ends:
                graph.lead(number, target)
            wrong = _wrong(graph.worlds[target], properties) if new else ""
            if wrong:
                return _report(graph, _told(graph, target, wrong, rules, bounds))
    stuck = _stuck(graph) if check_ends else None
    return _report(graph, None if stuck is None else _told(graph, stuck, _FOREVER, rules, bounds))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Worlds are trees: nothing of them is ever a cycle, and looking for one costs a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _numbers(graph: _Graph, limit: int) -> Iterator[int]:
    """The worlds in the order of their distance, while their number grows."""
    number = 0
    while number < len(graph.worlds):
        if number >= limit:
            raise RuntimeError(f"more than {limit} states: raise the limit or lower the bounds")
        yield number
        number += 1


def _wrong(world: World, properties: Mapping[str, Property]) -> str:
    return next((found for check in properties.values() if (found := check(world))), "")


def _stuck(graph: _Graph) -> int | None:
    """The first world from which no step after step of progress leads to a good end."""
    sources: dict[int, list[int]] = {}
    for target, source in zip(graph.progress_to, graph.progress_from, strict=True):
        sources.setdefault(target, []).append(source)
    reaches = bytearray(ended(world) for world in graph.worlds)
    fringe = [number for number, good in enumerate(reaches) if good]
    while fringe:
        for source in sources.pop(fringe.pop(), ()):
            if not reaches[source]:
                reaches[source] = 1
                fringe.append(source)
    found = reaches.find(0)
    return None if found < 0 else found


def _report(graph: _Graph, counterexample: Counterexample | None) -> Report:
    worlds = graph.worlds
    depth = len(_path(graph, len(worlds) - 1))
    ends = Counter(str(world.row.state) for world in worlds if ended(world))
    phases = frozenset(actor.phase for world in worlds for actor in world.actors)
    return Report(len(worlds), graph.steps, depth, ends, phases, counterexample)


def _path(graph: _Graph, number: int) -> list[int]:
    """The worlds after the first on the way to this one."""
    path: list[int] = []
    while number:
        path.append(number)
        number = graph.parents[number]
    return path[::-1]


def _told(graph: _Graph, number: int, what: str, rules: Rules, bounds: Bounds) -> Counterexample:
    worlds = [graph.worlds[0], *(graph.worlds[it] for it in _path(graph, number))]
    return Counterexample(what, explained(worlds, rules, bounds))
