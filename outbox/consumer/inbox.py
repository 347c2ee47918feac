"""``Inbox`` (C1): handlers whose database effects happen exactly once per key, whatever is delivered how often."""

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.consumer import retention
from outbox.consumer.calling import Handler
from outbox.consumer.message import Message
from outbox.consumer.outcome import Outcome
from outbox.consumer.row_transaction import RowTransaction
from outbox.consumer.sql_consumer import SqlConsumer


class Inbox(SqlConsumer):
    """A consumer whose handlers, ``def on_paid(message, session)``, write in the inbox's transaction.

    The handler's writes through its session, an ``Outbox.add`` on that session and the inbox row commit together: once
    per (consumer, key) for as long as the row is kept (``retention``, seconds). Everything else that a handler does
    happens at least once. The handler must not end its transaction.

    ``database`` is the engine of the business database, or its URL. ``consumer`` is the logical name under which
    effects are remembered: keep it when the broker's group changes. ``row_lock`` suits long handlers: other deliveries
    of the key find it in progress instead of waiting. ``lock_timeout`` and ``statement_timeout`` are in seconds; an
    engine that is passed in keeps its own, except for PostgreSQL's lock time-out.
    """

    def __init__(
        self,
        database: Engine | AsyncEngine | str,
        *,
        consumer: str,
        group: str | None = None,
        retention: float = retention.RETENTION,
        row_lock: bool = False,
        lock_timeout: float = 5.0,
        statement_timeout: float = 60.0,
        pool_size: int = 8,
    ) -> None:
        super().__init__(
            database,
            consumer,
            group=group,
            retention=retention,
            lock_timeout=lock_timeout,
            statement_timeout=statement_timeout,
            pool_size=pool_size,
        )
        self._rows = RowTransaction(self._engine, consumer, lock_timeout=lock_timeout, row_lock=row_lock)

    def _execute(self, message: Message, handler: Handler) -> Outcome:
        return self._rows.execute(message, handler)
