"""A broker in memory and a consumer without a store, for tests of the runner."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outbox.brokers.source import Delivery
from outbox.clock import monotonic
from outbox.consumer import Outcome, Processed
from outbox.identity import unique_ids

#: Generous: the machine may be busy.
DEADLINE = 120.0


def delivery(**fields: object) -> Delivery:
    """A delivery with an identity of its own; ``fields`` replace the defaults."""
    unique_id = unique_ids.fresh()
    defaults: dict[str, object] = {
        "topic": "payments",
        "body": b'{"n":1}',
        "unique_id": unique_id,
        "keys": (f"key-{unique_id}",),
        "tag": None,
        "properties": {},
        "attempt": 1,
        "receipt": "r0",
        "invisible_until": monotonic() + 60,
    }
    return Delivery(**{**defaults, **fields})  # type: ignore[arg-type]


@dataclass(slots=True)
class FakeSource:
    """Hands out what is queued; what is given back comes again at once. Stale receipts are not confirmed."""

    queued: list[Delivery] = field(default_factory=list)
    #: Comes again when it is given back.
    redelivers: bool = True
    acknowledged: list[str] = field(default_factory=list)
    returned: list[tuple[str, float]] = field(default_factory=list)
    buried: list[tuple[str, str]] = field(default_factory=list)
    renewals: list[str] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    refuses_renewal: bool = False
    closed: bool = False
    _receipts: dict[str, str] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, *deliveries: Delivery) -> None:
        with self._changed:
            self.queued.extend(deliveries)
            self._changed.notify_all()

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        with self._changed:
            self.limits.append(limit)
            self._changed.wait_for(lambda: bool(self.queued), wait)
            batch, self.queued = self.queued[:limit], self.queued[limit:]
            self._receipts.update({each.unique_id: each.receipt for each in batch})
            return batch

    def acknowledge(self, delivery: Delivery) -> bool:
        return self._told(delivery, lambda: self.acknowledged.append(delivery.unique_id))

    def later(self, delivery: Delivery, delay: float) -> bool:
        def give_back() -> None:
            self.returned.append((delivery.unique_id, delay))
            if self.redelivers:
                self.queued.append(replace(delivery, attempt=delivery.attempt + 1))

        return self._told(delivery, give_back)

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        renewed = replace(delivery, receipt=f"{delivery.receipt}+", invisible_until=monotonic() + invisible)

        def replace_receipt() -> None:
            self.renewals.append(delivery.unique_id)
            self._receipts[delivery.unique_id] = renewed.receipt

        if self.refuses_renewal:
            return None
        return renewed if self._told(delivery, replace_receipt) else None

    def bury(self, delivery: Delivery, reason: str) -> bool:
        return self._told(delivery, lambda: self.buried.append((delivery.unique_id, reason)))

    def close(self) -> None:
        self.closed = True

    def _told(self, delivery: Delivery, carry_out: Callable[[], None]) -> bool:
        with self._changed:
            if self._receipts.get(delivery.unique_id) != delivery.receipt:
                return False
            carry_out()
            self._changed.notify_all()
            return True

    def expect(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for something that the broker was told, or fails with ``what``."""
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE), what


@dataclass(slots=True)
class FakeStrategy:
    """Answers by a policy, and remembers what it was asked."""

    policy: Callable[[Delivery], Outcome] = field(default=lambda _: Processed())
    topics: Sequence[str] = ("payments",)
    group: str = "outbox-tests"
    parks: bool = True
    processed: list[str] = field(default_factory=list)
    parked: list[tuple[str, str]] = field(default_factory=list)
    closed: bool = False
    purges: int = 0

    def check(self) -> None:
        pass

    def process(self, delivery: Delivery) -> Outcome:
        self.processed.append(delivery.unique_id)
        return self.policy(delivery)

    def park(self, delivery: Delivery, reason: str) -> bool:
        if self.parks:
            self.parked.append((delivery.unique_id, reason))
        return self.parks

    def purge(self) -> int:
        self.purges += 1
        return 0

    def close(self) -> None:
        self.closed = True
