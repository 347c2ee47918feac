"""A bad network between the broker and everybody else."""

from typing import Final

from tests.crash.target import Target

#: Seconds for which the network holds a request back at most: well below the grace of the commit lease.
STALL: Final = 1.5


def stall(target: Target) -> str:
    """Requests and answers are late."""
    moment, seconds = target.random_moment(), target.random.uniform(0.2, STALL)
    target.network.stall(seconds)
    return f"network, {moment}, {seconds:.2f} s"


def cut(target: Target) -> str:
    """All connections to the broker end."""
    moment = target.random_moment()
    target.network.cut()
    return f"network, {moment}"


def cut_after_bytes(target: Target) -> str:
    """Each connection ends once so many more bytes went to the broker, mostly within a request."""
    moment, limit, seconds = target.random_moment(), target.random.randint(1, 20_000), target.random.uniform(1, 4)
    target.network.cut_after(limit, seconds)
    return f"network, {moment}, {limit} bytes, {seconds:.2f} s"


def lose_answers(target: Target) -> str:
    """Requests take effect, but nobody hears of it; then the connections end."""
    moment, seconds = target.random_moment(), target.random.uniform(0.2, 4)
    target.network.lose_answers(seconds)
    return f"network, {moment}, {seconds:.2f} s"


def lose_requests(target: Target) -> str:
    """Requests go nowhere while the broker's own still arrive; then the connections end."""
    moment, seconds = target.random_moment(), target.random.uniform(0.2, 4)
    target.network.lose_requests(seconds)
    return f"network, {moment}, {seconds:.2f} s"
