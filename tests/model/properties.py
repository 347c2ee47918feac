"""What must hold in every reachable world."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from outbox.lifecycle import State, endings
from tests.model.world import World


def one_message(world: World) -> str:
    """Never two visible messages, over the whole life of the row.

    Cancelling, burying, reopening and requeueing included. One act is the operator's own: requeueing a row that died
    because its outcome was unknown may repeat a message that was visible before; what follows is counted afresh.
    """
    return "two visible messages for one row" if world.visible.number > 1 else ""


def delivered_is_visible(world: World) -> str:
    """Delivered only if the message of the half that the row names is, or was, visible."""
    delivered, visible = world.row.state is State.DELIVERED, world.visible
    return "delivered without its message" if delivered and visible.half != world.row.half else ""


def unpublished_is_invisible(world: World) -> str:
    """No message of a row that is pending, cancelled or dead by refusal; dead by lost track may have one."""
    row = world.row
    unpublished = row.state in (State.PENDING, State.CANCELLED, State.DEAD) and not row.lost_track
    return f"{row.state} with a visible message" if unpublished and world.visible.number else ""


def no_breach(world: World) -> str:
    """No step did what no step may do.

    No answer but UNKNOWN to a half without a row; no COMMIT for a half after a ROLLBACK for it; no change of a row
    under a live lease by anybody but its holder, an operator, or one who saw the message visible.
    """
    return world.breach


_ENDED: Final = (None, *endings())
PROPERTIES: Final[Mapping[str, Callable[[World], str]]] = MappingProxyType(
    {
        "one message": one_message,
        "delivered is visible": delivered_is_visible,
        "unpublished is invisible": unpublished_is_invisible,
        "no breach": no_breach,
    }
)


def ended(world: World) -> bool:
    """A good end: the row owes nothing, or has been deleted after it owed nothing."""
    return world.row.state in _ENDED
