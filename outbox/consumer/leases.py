"""Leases of keys: who may work on a message, for how long, and how the holder finds out that it is over."""

import logging
import threading
from dataclasses import dataclass
from typing import Protocol

from outbox.clock import monotonic
from outbox.consumer.claims import Claim
from outbox.consumer.errors import LeaseLost
from outbox.consumer.forks import anew_in_children
from outbox.shown import cause

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is ours, under this token, which names this one claim."""

    token: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The effect of the key is durable."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another owner has the key, for up to ``remaining`` seconds more."""

    remaining: float


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The key belongs to another message."""

    reason: str


class ClaimStore(Protocol):
    """Where claims are kept. Each call is one atomic step by the store's own clock, and raises where it fails."""

    def claim(self, claim: Claim, lease: float) -> Claimed | Finished | Busy | Contradicted:
        """Takes the key for ``lease`` seconds if nobody has it, or if its owner's lease is over."""
        ...

    def renew(self, claim: Claim, token: int, lease: float) -> bool:
        """``lease`` seconds from now on; False: the key is not ours any more."""
        ...

    def complete(self, claim: Claim, token: int) -> bool:
        """Remembers the effect; False: the key is not ours any more."""
        ...

    def release(self, claim: Claim, token: int) -> None:
        """Lets the next one claim at once; does nothing if the key is not ours."""
        ...


class Lease:
    """What a handler holds: the right to work on its message, renewed while it works."""

    def __init__(self, store: ClaimStore, claim: Claim, token: int, seconds: float, since: float) -> None:
        self._store = store
        self._claim = claim
        self._seconds = seconds
        self._until = since + seconds
        self._lost = False
        #: Rises with each claim of the key where the store counts; pass it on, so that a later owner is told apart.
        self.token = token

    @property
    def held(self) -> bool:
        """Whether nobody else can have claimed the key, by our own monotonic clock."""
        return not self._lost and monotonic() < self._until

    def check(self) -> None:
        """Raises ``LeaseLost`` unless the lease is held: call it before each step that cannot be undone."""
        if not self.held:
            raise LeaseLost(f"key {self._claim.key!r}: its lease is over or taken; stop, the message comes again")

    def renew(self) -> None:
        """Extends the lease; a store that does not answer leaves it as it is."""
        since = monotonic()
        if self._store.renew(self._claim, self.token, self._seconds):
            self._until = since + self._seconds
        else:
            self._lost = True


class Keeper:
    """Renews leases at a third of their time, in one thread for all of them."""

    def __init__(self, seconds: float) -> None:
        self._every = seconds / 3
        self._begin()
        anew_in_children(self._begin)

    def _begin(self) -> None:
        """Without the leases of a forked child's parent, which renews them for as long as it lives."""
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(self, lease: Lease) -> None:
        """Renews the lease until it is let go."""
        with self._lock:
            self._leases.add(lease)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="outbox-leases", daemon=True)
                thread.start()  # raises where the system has no more threads
                self._thread = thread

    def let_go(self, lease: Lease) -> None:
        """Its work is over."""
        with self._lock:
            self._leases.discard(lease)

    def _run(self) -> None:
        """Ends with a round that finds nothing to renew."""
        pause = threading.Event()
        while not pause.wait(self._every):
            with self._lock:
                leases = [lease for lease in self._leases if lease.held]
                if not self._leases:
                    self._thread = None
                    return
            for lease in leases:
                self._renew(lease)

    @staticmethod
    def _renew(lease: Lease) -> None:
        try:
            lease.renew()
        except Exception as error:  # noqa: BLE001 -- the store may be back before the lease is over
            log.warning("lease not renewed, tried again until it is over: %s", cause(error))
