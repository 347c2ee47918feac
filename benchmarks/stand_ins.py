"""Transports that cost nothing, or a given time a message, and a source in memory, behind the ports of real ones."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

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
from outbox.brokers.source import Delivery
from outbox.clock import monotonic
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


class StandInSource:
    """Hands out what is put, and tells when all of it was acknowledged; it wakes nobody at each acknowledgement."""

    def __init__(self) -> None:
        self._queued: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._left = 0
        self._lock = threading.Lock()
        self._all = threading.Event()

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Returns once all are acknowledged."""
        self._left = len(deliveries)
        self._all.clear()
        for each in deliveries:
            self._queued.put(each)
        assert self._all.wait(120), "not all were acknowledged"

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """What is there, waiting for the first."""
        found: list[Delivery] = []
        with suppress(queue.Empty):
            found.append(self._queued.get(timeout=wait))
            while len(found) < limit:
                found.append(self._queued.get_nowait())
        return found

    def acknowledge(self, delivery: Delivery) -> bool:  # noqa: ARG002 -- the port's signature
        """One less."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self._all.set()
        return True

    def renew(self, delivery: Delivery, invisible: float) -> Delivery:
        """As long as is asked for."""
        return replace(delivery, invisible_until=monotonic() + invisible)

    def later(self, delivery: Delivery, delay: float) -> bool:
        """Nothing may fail here."""
        raise AssertionError((delivery, delay))

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Nothing may fail here."""
        raise AssertionError((delivery, reason))

    def close(self) -> None:
        """Nothing."""
