"""The lease keeper: renews the leases of the passes under way, and tells them how long theirs still lasts."""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from outbox.store.claims import Attempt, Claims


class Hold:
    """The leases of one pass, by the holder's own clock, read before the database's clock started the lease."""

    def __init__(self, attempts: Collection[Attempt], since: float, lease: float, now: Callable[[], float]) -> None:
        self.attempts = attempts
        self._until = since + lease
        self._now = now

    def live(self) -> bool:
        """Whether the holder may still rely on the leases."""
        return self._now() < self._until

    def renewed(self, since: float, lease: float) -> None:
        """The leases were renewed by a statement that began after ``since``."""
        self._until = max(self._until, since + lease)


class LeaseKeeper:
    """Thread-safe: passes enter and leave, one caller renews."""

    def __init__(self, claims: Claims, lease: float, now: Callable[[], float]) -> None:
        self._claims = claims
        self._lease = lease
        self._now = now
        self._holds: set[Hold] = set()
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, attempts: Collection[Attempt], since: float) -> Iterator[Hold]:
        """Keeps the leases alive until the block ends; ``since``: our clock before the claim's BEGIN."""
        hold = Hold(attempts, since, self._lease, self._now)
        with self._lock:
            self._holds.add(hold)
        try:
            yield hold
        finally:
            with self._lock:
                self._holds.discard(hold)

    def renew(self) -> None:
        """Renews every hold; to be called every third of a lease. Rows that are no longer ours change nothing."""
        with self._lock:
            holds = list(self._holds)
        for hold in holds:
            since = self._now()
            if hold.live() and len(self._claims.renew(hold.attempts, self._lease)) == len(hold.attempts):
                hold.renewed(since, self._lease)
