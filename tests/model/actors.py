"""What each actor may do next: each step is one transaction, one request or one look-up.

Between any two steps everybody else may act, and the actor may die (``environment``).
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tests.model import attempts, holders
from tests.model.broker import broker_steps
from tests.model.environment import environment_steps
from tests.model.rules import Rules
from tests.model.steps import Stepped, Turn
from tests.model.world import Bounds, Phase, Role, World

_Acting = Callable[[Turn], Iterator[Stepped]]

#: A check-back without a question waits for the broker's (``broker``).
_IDLE: Final[Mapping[Role, _Acting]] = MappingProxyType(
    {Role.RELAY: attempts.claim, Role.RECONCILER: holders.reconcile}
)
_BUSY: Final[Mapping[Phase, _Acting]] = MappingProxyType(
    {
        Phase.HALF_SENT: attempts.renewal,
        Phase.HALF_UNKNOWN: attempts.half_unknown,
        Phase.HALF_NOT_STORED: attempts.half_not_stored,
        Phase.HALF_STORED: attempts.half_stored,
        Phase.ASKED: holders.asked,
        Phase.ADOPT: holders.adopt,
        Phase.TAKE_OVER: holders.take_over,
        Phase.LOOK_UP: holders.look_up,
        Phase.COMMIT: holders.commit,
        Phase.GONE: holders.gone,
        Phase.SETTLE: holders.settle,
        Phase.SETTLE_LEFTOVER: holders.settle,
        Phase.REOPEN: holders.reopen,
        Phase.GIVE_UP: holders.give_up,
        Phase.POSTPONE: holders.postpone,
    }
)


def successors(world: World, rules: Rules, bounds: Bounds) -> Iterator[Stepped]:
    """Every step that may happen next."""
    clean = world._replace(breach="") if world.breach else world
    for index, actor in enumerate(clean.actors):
        acting = _IDLE.get(actor.role) if actor.phase is Phase.IDLE else _BUSY.get(actor.phase)
        if acting is not None:
            for label, kind, after in acting(Turn(clean, index, actor, rules, bounds)):
                yield f"{actor.role.name.lower()} @{index} {label}", kind, after
    yield from broker_steps(clean, rules, bounds)
    yield from environment_steps(clean, rules, bounds)
