"""The lease keeper: renews the leases of the passes under way, and tells them how long theirs still lasts."""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from outbox.store.attempt import Attempt
from outbox.store.claims import Claims


class Hold:
    """The leases of one pass, by the holder's own clock, read before the database's clock started the lease."""

    def __init__(self, attempts: Collection[Attempt], since: float, lease: float, now: Callable[[], float]) -> None:
        self._attempts = attempts
        self._lease = lease
        self._until = since + lease
        self._now = now
        self._writing = threading.Lock()

    def live(self) -> bool:
        """Whether the holder may still rely on the leases."""
        return self._now() < self._until

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Keeps renewals away: they lock the rows, and a decision leaves locked rows undecided for a whole lease."""
        with self._writing:
            yield

    def renew(self, claims: Claims) -> None:
        """Renews the leases once a third of their time is gone, unless their holder decides at this moment."""
        if not self._is_due() or not self._writing.acquire(blocking=False):
            return
        try:
            since = self._now()
            if self.live() and len(claims.renew(self._attempts, self._lease)) == len(self._attempts):
                self._until = since + self._lease
        finally:
            self._writing.release()

    def _is_due(self) -> bool:
        return self._now() >= self._until - 2 * self._lease / 3


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
        """Renews the holds that are due; to be called every third of a lease. Rows no longer ours change nothing."""
        with self._lock:
            holds = list(self._holds)
        for hold in holds:
            hold.renew(self._claims)
