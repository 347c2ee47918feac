"""Transports that cost nothing, or a given time a message, behind the port of real ones."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from outbox.brokers.base import (
    Capabilities,
    Ended,
    Ending,
    Half,
    OnCheck,
    Outgoing,
    Prepared,
    Publication,
    Sent,
    Sought,
    Stored,
)
from outbox.verdict import Confirmation, Sighting

#: Messages that a transport has in flight at most.
IN_FLIGHT = 512


class StandIn:
    """Stores and confirms everything. Each message takes ``seconds``: one after another in a lane, at once without.

    Ending a half takes as long as sending it, since a real one makes that round trip as well.
    """

    group = "outbox-bench"
    capabilities = Capabilities(confirms=True, finds=True, ends_by_handle=True, check_scope="group")

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:  # noqa: ARG002 -- the port's
        """All are stored."""
        self._take(it.lane for it in messages)
        return [Stored(Half(it.topic, it.unique_id, "stand-in", "0:0:0", self.group)) for it in messages]

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:  # noqa: ARG002 -- the port's
        """All are confirmed."""
        self._take(None for _ in endings)
        return [Ended(Confirmation.CONFIRMED)] * len(endings)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:  # noqa: ARG002 -- the port's
        """All are stored."""
        self._take(it.lane for it in messages)
        return [Sent(it.unique_id) for it in messages]

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:  # noqa: ARG002 -- the port's
        """Nothing is known of any."""
        return [Sighting.CANNOT_TELL] * len(sought)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        """Nobody asks."""

    def checks_ready(self) -> bool:
        """As ready as it will be."""
        return True

    def reachable(self, timeout: float) -> bool:  # noqa: ARG002 -- the port's
        """Always."""
        return True

    def close(self) -> None:
        """Nothing is open."""

    def _take(self, lanes: Iterable[str | None]) -> None:
        if not self._seconds:
            return
        of_lane = Counter(lanes)
        free = of_lane.pop(None, 0)
        rounds = max(-(-free // IN_FLIGHT), max(of_lane.values(), default=0))
        time.sleep(rounds * self._seconds)
