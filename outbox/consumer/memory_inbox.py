"""``MemoryInbox`` (C7): a cache of committed keys in the process, and one worker at a time for each key."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from outbox.clock import monotonic
from outbox.consumer.claims import Claim
from outbox.consumer.forks import anew_in_children
from outbox.consumer.keys import stored_key
from outbox.consumer.message import Message
from outbox.consumer.outcome import Outcome
from outbox.consumer.remembering import Counters, Executing, Remembering

_Name = tuple[bytes, str, bytes]


class LocalMemory:
    """The last ``size`` effects of this process, each for ``ttl`` seconds; a forked child begins with none."""

    def __init__(self, size: int, ttl: float) -> None:
        self._size = size
        self._ttl = ttl
        self._begin()
        anew_in_children(self._begin)

    def _begin(self) -> None:
        self._until: OrderedDict[_Name, float] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, claim: Claim) -> bool:
        """Also where only the same payload was seen: another one is the strategy's to judge."""
        name = _name(claim)
        with self._lock:
            until = self._until.get(name)
            if until is None or until <= monotonic():
                self._until.pop(name, None)
                return False
            self._until.move_to_end(name)
            return True

    def remember(self, claim: Claim) -> None:
        """Drops the one that was not asked for the longest."""
        with self._lock:
            self._until[_name(claim)] = monotonic() + self._ttl
            while len(self._until) > self._size:
                self._until.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """Before a replay: every message of the key."""
        with self._lock:
            for name in [name for name in self._until if name[0] == key]:
                del self._until[name]


class MemoryInbox(Remembering):
    """A strategy with a cache in front that costs no round trip, for many workers over few hot keys.

    ``size`` keys are remembered, for ``ttl`` seconds each, no longer than the strategy's own retention. A key that
    two deliveries bring at the same moment is worked on once: the second waits, and finds it done. How many work at
    once is the runner's setting (``RunnerSettings(threads=…)``); what waits there is bounded and kept invisible, and a
    message is acknowledged by its worker, after the commit. The guarantee is the strategy's.
    """

    def __init__(self, inner: Executing, *, size: int = 100_000, ttl: float = 3600.0) -> None:
        self._local = LocalMemory(size, ttl)
        super().__init__(inner, self._local, Counters(), ttl)
        self._begin()
        anew_in_children(self._begin)

    def _begin(self) -> None:
        """What flies in the parent of a forked child lands there."""
        self._flying: set[_Name] = set()
        self._landed = threading.Condition()

    def forget(self, key: str) -> bool:
        """Of this process; others remember the key for up to ``ttl`` seconds more."""
        forgotten = super().forget(key)
        self._local.forget(stored_key(key))
        return forgotten

    def _execute(self, claim: Claim, message: Message, handler: Callable[..., Any]) -> Outcome:
        """One at a time for each key; other processes are kept apart by the strategy behind."""
        name = _name(claim)
        with self._landed:
            self._landed.wait_for(lambda: name not in self._flying)
            self._flying.add(name)
        try:
            return super()._execute(claim, message, handler)
        finally:
            with self._landed:
                self._flying.discard(name)
                self._landed.notify_all()


def _name(claim: Claim) -> _Name:
    return claim.key, claim.topic, claim.payload_hash
