"""``Inbox`` (C1): handlers whose database effects happen exactly once per key, whatever is delivered how often."""

from typing import Unpack

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.consumer.calling import Handler
from outbox.consumer.message import Message
from outbox.consumer.outcome import Outcome
from outbox.consumer.row_transaction import RowTransaction
from outbox.consumer.sql_consumer import Options, SqlConsumer


class Inbox(SqlConsumer):
    """A consumer whose handlers, ``def on_paid(message, session)``, write in the inbox's transaction.

    The handler's writes through its session, an ``Outbox.add`` on that session and the inbox row commit together: once
    per (consumer, key) for as long as the row is kept (``retention``, seconds). Everything else that a handler does
    happens at least once. The handler must not end its transaction.

    ``database`` is the engine of the business database, or its URL. ``row_lock`` suits long handlers: other deliveries
    of the key find it in progress instead of waiting. The other ``Options`` are those of every strategy over SQL.
    """

    def __init__(
        self, database: Engine | AsyncEngine | str, *, row_lock: bool = False, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, **options)
        self._rows = RowTransaction(self._guarded, self.consumer, lock_timeout=self._lock_timeout, row_lock=row_lock)

    def _execute(self, message: Message, handler: Handler) -> Outcome:
        return self._rows.execute(message, handler)
