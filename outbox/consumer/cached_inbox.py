"""``CachedInbox`` (C5): Redis in front of the database; Redis holds committed facts, the unique index decides."""

import logging

from outbox.clock import monotonic
from outbox.consumer.claims import Claim
from outbox.consumer.errors import StoreAway
from outbox.consumer.keys import stored_key
from outbox.consumer.redis_claims import Reachable, Redis, exceptions, fingerprint
from outbox.consumer.redis_inbox import connected
from outbox.consumer.remembering import Counters, Executing, Remembering

log = logging.getLogger(__name__)

#: Seconds for which a Redis that did not answer is left alone, so that its time-out is not paid for each message.
_REST = 5.0
TTL = 24 * 3600.0


class RedisMemory:
    """Committed effects in Redis, each for ``ttl`` seconds, under an epoch that an operator can raise."""

    def __init__(self, client: Redis, epoch: str, ttl: float, counters: Counters) -> None:
        self._client = client
        self._epoch = epoch.encode()
        self._ttl = round(ttl * 1000)
        self._counters = counters
        self._rests_until = 0.0

    def knows(self, claim: Claim) -> bool:
        """Only if the value is this very message's fingerprint: another payload is the database's to judge."""
        if monotonic() < self._rests_until:
            self._counters.count("errors")
            return False
        try:
            with Reachable():
                value = self._client.get(self._key(claim))
        except (StoreAway, exceptions.RedisError) as error:
            self._leave_alone(error)
            return False
        return value in (fingerprint(claim), fingerprint(claim).encode())

    def remember(self, claim: Claim) -> None:
        """Best effort: what is not remembered is found in the database."""
        if monotonic() < self._rests_until:
            return
        try:
            with Reachable():
                self._client.set(self._key(claim), fingerprint(claim), px=self._ttl)
        except (StoreAway, exceptions.RedisError) as error:
            self._leave_alone(error)

    def forget(self, consumer: str, key: bytes) -> None:
        """Before a replay: raises ``StoreAway`` rather than leave the mark behind."""
        with Reachable():
            self._client.delete(self._name(consumer, key))

    def _key(self, claim: Claim) -> bytes:
        return self._name(claim.consumer, claim.key)

    def _name(self, consumer: str, key: bytes) -> bytes:
        return b"outbox-done:{" + consumer.encode() + b"}:" + self._epoch + b":" + key

    def _leave_alone(self, error: Exception) -> None:
        self._rests_until = monotonic() + _REST
        self._counters.count("errors")
        log.warning("%s: the database decides alone for %.0f s", error, _REST)


class CachedInbox(Remembering):
    """A strategy over the database (``Inbox``, ``LeasedInbox``) with Redis in front, for repeats that come for long.

    A hit costs no database. A miss, or a Redis that is away, costs what the strategy costs, and its guarantee holds:
    exactly one effect. ``ttl`` (seconds) must not exceed the strategy's retention. Raise ``epoch`` when the database is
    restored to an earlier point: what Redis remembers from after that point would lose messages. ``counters`` tell
    hits, misses, errors and conflicts, that is, repeats that only the unique index knew.

    Over a ``LeasedInbox`` operators see each message from PROCESSING (``done_at`` NULL) to SUCCESS.
    """

    def __init__(
        self, inner: Executing, redis: Redis | str, *, epoch: str = "1", ttl: float = TTL, timeout: float = 0.5
    ) -> None:
        counters = Counters()
        self._client = connected(redis, timeout)
        self._own = isinstance(redis, str)
        self._facts = RedisMemory(self._client, epoch, ttl, counters)
        super().__init__(inner, self._facts, counters, ttl)

    def forget(self, key: str) -> bool:
        """Row, then mark: a message that comes in between is decided by the database. Raises if Redis is away."""
        forgotten = super().forget(key)
        self._facts.forget(self.consumer, stored_key(key))
        return forgotten

    def close(self) -> None:
        """Closes the strategy behind, and the connections, unless the client was passed in."""
        super().close()
        if self._own:
            self._client.close()
