"""What the strategies over a SQL database share: its engine, its tables, the parking table."""

from sqlalchemy.engine import Engine

from outbox import migrate
from outbox.brokers.source import Delivery
from outbox.consumer import claims, parking
from outbox.consumer.consumer import Consumer
from outbox.consumer.keys import stored_key
from outbox.store.database import Database


class SqlConsumer(Consumer):
    """A consumer over the business database: its engine, which stays the caller's to dispose of, or its URL.

    ``lock_timeout`` and ``statement_timeout`` (seconds) and ``pool_size`` are for an engine made from a URL; one that
    is passed in keeps its own.
    """

    def __init__(
        self,
        database: Engine | str,
        consumer: str,
        *,
        group: str | None,
        retention: float,
        lock_timeout: float = 5.0,
        statement_timeout: float = 60.0,
        pool_size: int = 8,
    ) -> None:
        super().__init__(consumer, group=group, retention=retention)
        self._own: Database | None = None
        if isinstance(database, Engine):
            self._engine = database
        else:
            self._own = Database(
                database, pool_size=pool_size, lock_timeout=lock_timeout, statement_timeout=statement_timeout
            )
            self._engine = self._own.engine

    def _check_store(self) -> None:
        with self._engine.connect() as connection:
            migrate.check_on(connection)

    def park(self, delivery: Delivery, reason: str) -> bool:
        """Stores the delivery in the parking table."""
        parking.park(self._engine, self.consumer, delivery, self._key_or_none(delivery), reason)
        return True

    def forget(self, key: str) -> bool:
        """Has the effect of a key happen again when its message is replayed; whether there was one."""
        with self._engine.begin() as connection:
            return claims.forget(connection, self.consumer, stored_key(key))

    def close(self) -> None:
        """Closes the connections, unless the engine was passed in."""
        if self._own:
            self._own.close()
