"""What the strategies over a SQL database share: its engine, its tables, the parking table."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Required, TypedDict

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import revision
from outbox.brokers.source import Delivery
from outbox.columns import MYSQL_FAMILY
from outbox.consumer import claims, parking, retention
from outbox.consumer.bridge import Bridge, Direct, OnLoop, is_coroutine, named
from outbox.consumer.consumer import Consumer
from outbox.consumer.guard import watch
from outbox.consumer.keys import stored_key
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, Filtered, Outcome, Processed, Retry
from outbox.errors import SettingsError
from outbox.store.conflicts import repeated
from outbox.store.database import Database


class Options(TypedDict, total=False):
    """What every strategy over SQL can be told; times in seconds."""

    #: The logical name under which effects are remembered: keep it when the broker's group changes.
    consumer: Required[str]
    #: The broker's consumer group; ``outbox-<consumer>`` by default.
    group: str | None
    #: How long effects are remembered (7 days); a message that was sent before that is parked.
    retention: float
    #: Of an engine that is made from a URL (5, 60, 8 connections); one that is passed in keeps its own, except for
    #: PostgreSQL's lock time-out.
    lock_timeout: float
    statement_timeout: float
    pool_size: int


class SqlConsumer(Consumer):
    """A consumer over the business database: its engine, which stays the caller's to dispose of, or its URL.

    With an ``AsyncEngine`` handlers may be coroutines: ``async def on_paid(message, session)``, with an
    ``AsyncSession``. They run on an event loop of the consumer's own, so the engine must not be shared with another.
    """

    def __init__(
        self,
        database: Engine | AsyncEngine | str,
        *,
        consumer: str,
        group: str | None = None,
        retention: float = retention.RETENTION,
        lock_timeout: float = 5.0,
        statement_timeout: float = 60.0,
        pool_size: int = 8,
    ) -> None:
        super().__init__(consumer, group=group, retention=retention)
        self._lock_timeout = lock_timeout
        self._own: Database | None = None
        self._bridge: Bridge = OnLoop() if isinstance(database, AsyncEngine) else Direct()
        if isinstance(database, Engine):
            self._engine = database
        elif isinstance(database, AsyncEngine):
            self._engine = _checked(database.sync_engine)
        else:
            self._own = Database(
                database, pool_size=pool_size, lock_timeout=lock_timeout, statement_timeout=statement_timeout
            )
            self._engine = self._own.engine
        #: For what handlers do: watched by the guard.
        self._guarded = self._engine
        if self._engine.dialect.name in MYSQL_FAMILY:
            # Under REPEATABLE READ a read after a lost claim might not see the winner's row.
            self._guarded = self._engine.execution_options(isolation_level="READ COMMITTED")
        watch(self._guarded)

    def execute(self, message: Message, handler: Callable[..., Any]) -> Outcome:
        """Runs the handler once per key, as the strategy promises; anew at once where the database sacrificed it."""
        return repeated(
            lambda: self._bridge.run(self._execute, message, handler),
            sacrificed=lambda outcome: isinstance(outcome, Retry) and outcome.conflict,
        )

    def _adapted(self, function: Callable[..., object]) -> Callable[..., object]:
        """As the bridge calls it; a coroutine that nothing awaits would use up the retries of each message."""
        if isinstance(self._bridge, Direct) and is_coroutine(function):
            raise SettingsError(
                f"handler {named(function)} of consumer {self.consumer!r}: is asynchronous, and the engine is not: "
                f"give {type(self).__name__} an AsyncEngine, or write a plain def"
            )
        return self._bridge.adapted(function)

    @abstractmethod
    def _execute(self, message: Message, handler: Callable[..., Any]) -> Outcome:
        """The same, where the engine can be used."""

    def _check_store(self) -> None:
        self._bridge.run(revision.check_at, self._engine)

    def park(self, delivery: Delivery, reason: str) -> bool:
        """Stores the delivery in the parking table."""
        key = self._key_or_none(delivery)
        self._bridge.run(parking.park, self._engine, self.consumer, delivery, key, reason)
        return True

    def parked(self, limit: int, after_id: int = 0) -> list[dict[str, Any]]:
        """The parked messages of this consumer in the order of their ids, without bodies."""
        return self._bridge.run(parking.listed, self._engine, self.consumer, limit, after_id)

    def retry(self, parked_id: int) -> Outcome | None:
        """Processes a parked message once more, and takes it out if that settles it; None: there is no such message.

        One that dies in between stays parked, and is a duplicate the next time.
        """
        delivery = self._bridge.run(parking.delivery_of, self._engine, self.consumer, parked_id)
        if delivery is None:
            return None
        outcome = self.process(delivery)
        if isinstance(outcome, Processed | Duplicate | Filtered):
            self.drop(parked_id)
        return outcome

    def drop(self, parked_id: int) -> bool:
        """Deletes a parked message without processing it; whether there was one."""
        return self._bridge.run(parking.remove, self._engine, self.consumer, parked_id)

    def purge(self) -> int:
        """Forgets one batch of effects older than the retention."""
        return self._bridge.run(retention.purge, self._engine, self.consumer, self.retention)

    def forget(self, key: str) -> bool:
        """Has the effect of a key happen again when its message is replayed; whether there was one."""
        return self._bridge.run(claims.forget, self._engine, self.consumer, stored_key(key))

    def close(self) -> None:
        """Closes the connections, unless the engine was passed in."""
        self._bridge.close()
        if self._own:
            self._own.close()


def _checked(engine: Engine) -> Engine:
    """``asyncpg`` does not tell whether an error has aborted the transaction, and then COMMIT would undo it unseen."""
    if engine.dialect.driver == "asyncpg":
        raise SettingsError("database: asyncpg hides the state of its transactions; use postgresql+psycopg://…")
    return engine
