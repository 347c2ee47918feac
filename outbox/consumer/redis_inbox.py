"""``RedisInbox`` (C2): dedup in Redis with a time to live, for effects outside SQL."""

import logging
from collections.abc import Callable
from functools import partial

from outbox.brokers.source import Delivery
from outbox.consumer import retention
from outbox.consumer.bridge import OnLoop, is_coroutine
from outbox.consumer.calling import call
from outbox.consumer.claims import Claim
from outbox.consumer.consumer import Consumer
from outbox.consumer.errors import LeaseLost
from outbox.consumer.keys import stored_key
from outbox.consumer.leased import LeasedExecution
from outbox.consumer.leases import Lease
from outbox.consumer.message import Message
from outbox.consumer.outcome import Outcome
from outbox.consumer.redis_claims import Reachable, Redis, RedisClaims, exceptions, redis_key
from outbox.errors import SettingsError

log = logging.getLogger(__name__)

Handler = Callable[[Message, Lease], object]


class RedisInbox(Consumer):
    """A consumer whose handlers, ``def on_paid(message, lease)``, have effects that no SQL transaction covers.

    They may be coroutines; these run on an event loop of the consumer's own.

    At most one owner works on a key at a time, and a key whose effect is remembered is not worked on again for
    ``retention`` seconds. An effect happens **at least once**: again after a crash between effect and memory, after a
    lease that lapsed while its owner lived on (``lease`` seconds, renewed at a third; take at least twice what a slow
    handler takes, and pass ``lease.token`` or the key on to whatever can refuse a repeat), and after Redis itself
    forgot (fail-over, flush, eviction). Never lost. While Redis is away nothing is processed.

    There is no table to park a message in; what is parked goes to the dead-letter topic.
    """

    def __init__(
        self,
        redis: Redis | str,
        *,
        consumer: str,
        group: str | None = None,
        lease: float = 60.0,
        retention: float = retention.RETENTION,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(consumer, group=group, retention=retention)
        self._own = isinstance(redis, str)
        self._client = connected(redis, timeout)
        self._claims = RedisClaims(self._client, retention)
        self._loop = OnLoop()
        self._execution = LeasedExecution(self._claims, lease)

    def execute(self, message: Message, handler: Handler) -> Outcome:
        """Under a lease; remembered when the handler returns."""
        claim = Claim.of(self.consumer, message)

        def work(lease: Lease) -> None:
            call(partial(handler, message, lease), lambda _: False)
            if not self._claims.complete(claim, lease.token):
                raise LeaseLost(f"key {message.key!r}: another owner claimed it; both may have had their effect")

        return self._execution.execute(claim, work)

    def _adapted(self, function: Callable[..., object]) -> Callable[..., object]:
        if is_coroutine(function):
            return partial(self._loop.run, self._loop.adapted(function))
        return function

    def _check_store(self) -> None:
        check_durability(self._client)

    def park(self, delivery: Delivery, reason: str) -> bool:  # noqa: ARG002 -- the port's signature
        """There is no place for it here."""
        return False

    def forget(self, key: str) -> bool:
        """Has the effect of a key happen again when its message is replayed; whether it was known."""
        with Reachable():
            return bool(self._client.delete(redis_key(self.consumer, stored_key(key))))

    def purge(self) -> int:
        """Nothing: Redis forgets by itself."""
        return 0

    def close(self) -> None:
        """Closes the connections, unless the client was passed in."""
        self._loop.close()
        if self._own:
            self._client.close()


def connected(redis: Redis | str, timeout: float) -> Redis:
    """The client, or one for the URL whose calls take at most ``timeout`` seconds; nothing is dialled yet."""
    if not isinstance(redis, str):
        return redis
    try:
        return Redis.from_url(redis, socket_timeout=timeout, socket_connect_timeout=timeout)
    except ValueError as error:
        raise SettingsError(f"redis: {error}; write it like redis://host:6379/0") from error


def check_durability(client: Redis) -> None:
    """Raises where Redis may evict what it must remember, or cannot be reached; logs what weakens it."""
    try:
        client.ping()
        settings = _settings(client)
    except exceptions.RedisError as error:
        raise SettingsError(f"redis: cannot be used: {error}; start it, or correct its URL") from error
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") != "0" and policy != "noeviction":
        raise SettingsError(
            f"redis: maxmemory-policy is {policy!r}, so it would forget effects when its memory is full, and they "
            "would happen again; use an instance with noeviction"
        )
    if settings.get("appendonly") == "no" and not settings.get("save"):
        log.warning("redis: nothing is written to disk, so a restart forgets all effects; set appendonly yes")


def _settings(client: Redis) -> dict[str, str]:
    """What it says of itself; empty where the user may not ask."""
    try:
        return {
            str(name): str(value)
            for pattern in ("maxmemory*", "appendonly", "save")
            for name, value in client.config_get(pattern).items()
        }
    except exceptions.RedisError as error:
        log.info("redis: its settings cannot be read (%s); see that it has noeviction and appendonly yes", error)
        return {}
