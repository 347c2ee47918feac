"""Explores the model of a lane: every reachable world, and the shortest way into one that is in trouble."""

from dataclasses import dataclass, field, replace

from tests.model.lanes import (
    AS_BUILT,
    DEATH,
    Bounds,
    Rules,
    Step,
    Transaction,
    World,
    head,
    initial,
    standing,
    successors,
)


def order(world: World) -> str:
    """No row is shipped while an earlier one is open, and none appears behind one that was shipped."""
    return "a row was overtaken" if world.overtaken else ""


def wake_up(world: World) -> str:
    """While no transaction is open, a parked row has somebody before it who will wake it."""
    if not _is_quiet(world):
        return ""
    first = head(world, Transaction())
    row = world.rows[first - 1] if first else None
    return f"row {first} is parked at the head of its lane" if row is not None and row.parked else ""


def _is_quiet(world: World) -> bool:
    return all(it.step is Step.IDLE for it in (*world.producers, *world.claims, *world.endings, *world.cancels))


def over(world: World) -> bool:
    """Nothing is left to do."""
    return _is_quiet(world) and not standing(world, Transaction())


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration found."""

    states: int
    #: The steps of the shortest way into trouble; empty: there is none.
    trouble: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Graph:
    """How each world was reached first, and from where a good end may be reached through it."""

    came_from: dict[World, tuple[World, str] | None]
    sources: dict[World, list[World]] = field(default_factory=dict)

    def report(self, world: World, wrong: str) -> Report:
        steps = [wrong]
        while (step := self.came_from[world]) is not None:
            world, what = step
            steps.append(what)
        return Report(len(self.came_from), steps[::-1])

    def stuck(self) -> World | None:
        """A world from which the daemons alone cannot come to an end."""
        fringe = [world for world in self.came_from if over(world)]
        reaching = set(fringe)
        while fringe:
            new = [it for it in self.sources.get(fringe.pop(), ()) if it not in reaching]
            reaching.update(new)
            fringe += new
        return next((world for world in self.came_from if world not in reaching), None)


def explore(bounds: Bounds, rules: Rules = AS_BUILT) -> Report:
    """Every world within the bounds, breadth first, to the first one that is in trouble."""
    graph = _Graph({initial(bounds): None})
    fringe = list(graph.came_from)
    while fringe:
        reached = []
        for world in fringe:
            for what, after in successors(world, rules, bounds):
                if DEATH not in what and "cancels: cancels" not in what:
                    graph.sources.setdefault(after, []).append(world)
                if after in graph.came_from:
                    continue
                graph.came_from[after] = (world, what)
                reached.append(after)
                if wrong := order(after) or (not bounds.rollbacks and wake_up(after)) or "":
                    return graph.report(after, wrong)
        fringe = reached
    stuck = graph.stuck()
    return Report(len(graph.came_from)) if stuck is None else graph.report(stuck, "no end can be reached")


#: Each part of the protocol left out.
VARIANTS = {
    "no lock among producers": replace(AS_BUILT, producers_lock=False),
    "the id is drawn before the lock": replace(AS_BUILT, lock_before_id=False),
    "any row may be claimed": replace(AS_BUILT, heads_only=False),
    "no lock among daemons": replace(AS_BUILT, daemons_lock=False),
    "no look after the lock": replace(AS_BUILT, look_after_lock=False),
    "the lane goes on in a transaction of its own": replace(AS_BUILT, goes_on_in_the_transaction=False),
    "no sweep": replace(AS_BUILT, sweep=False),
}
