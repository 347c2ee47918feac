"""Many calls to proxies at once, from a thread that waits for them: one hop to the event loop and one back."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from outbox.brokers.grpc.channels import Channels
from outbox.clock import monotonic

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

#: Calls of one batch that wait for answers at the same time.
CAP: Final = 128


class Batch(Generic[Item, Outcome]):
    """The outcomes of some calls as far as they are known; ``mark`` says what is known before the answer."""

    def __init__(self, items: Sequence[Item], unsent: Outcome) -> None:
        """``unsent``: the outcome of what never left."""
        self.items = items
        self.outcomes: list[Outcome] = [unsent] * len(items)

    def run(
        self, channels: Channels, call: Callable[[Item, Callable[[Outcome], None]], Awaitable[Outcome]], until: float
    ) -> list[Outcome]:
        """Calls for every item; the outcomes in order, as they are at ``until``.

        Calls end by deadlines of their own, so nothing has to be cancelled here.
        """
        running = channels.run(self._all(call))
        with contextlib.suppress(TimeoutError):
            running.result(max(0.0, until - monotonic()))
        return list(self.outcomes)

    async def _all(self, call: Callable[[Item, Callable[[Outcome], None]], Awaitable[Outcome]]) -> None:
        places = iter(range(len(self.items)))

        async def work() -> None:
            """Takes one item after another."""
            for place in places:

                def mark(outcome: Outcome, place: int = place) -> None:
                    self.outcomes[place] = outcome

                await _one(call, self.items[place], mark)

        await asyncio.gather(*(work() for _ in range(min(CAP, len(self.items)))))


async def _one(
    call: Callable[[Item, Callable[[Outcome], None]], Awaitable[Outcome]], item: Item, mark: Callable[[Outcome], None]
) -> None:
    """One call; where it ends without a result, the outcome stays as it was marked, and the others go on."""
    try:
        mark(await call(item, mark))
    except asyncio.CancelledError:
        log.info("a connection was closed before the answer")  # by ``Channels.drop`` or ``close``: gRPC's way to say so
    except Exception:
        log.exception("a call to a proxy failed unexpectedly")
