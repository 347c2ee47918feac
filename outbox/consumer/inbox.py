"""``Inbox``: handlers whose database effects happen exactly once per key, whatever is delivered how often."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Engine

from outbox import migrate
from outbox.brokers.source import Delivery
from outbox.consumer import parking, retention
from outbox.consumer.failures import outcome_of
from outbox.consumer.keys import Extractor
from outbox.consumer.message import Message
from outbox.consumer.outcome import Filtered, NoKey, Outcome, Park
from outbox.consumer.row_transaction import Handler, RowTransaction
from outbox.consumer.schema import CONSUMER_BYTES
from outbox.consumer.subscriptions import Subscription, Subscriptions
from outbox.errors import SettingsError
from outbox.store.database import Database

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)


class Inbox:
    """A consumer whose handlers write in the inbox's transaction.

    The handler's writes through its session, an ``Outbox.add`` on that session and the inbox row commit together: once
    per (consumer, key) for as long as the row is kept (``retention``, seconds). Everything else that a handler does
    happens at least once.

    ``database`` is the engine of the business database, or its URL. ``consumer`` is the logical name under which
    effects are remembered: keep it when the broker's group changes. ``row_lock`` suits long handlers: other deliveries
    of the key find it in progress instead of waiting. ``lock_timeout`` and ``statement_timeout`` are in seconds; an
    engine that is passed in keeps its own, except for PostgreSQL's lock time-out.
    """

    def __init__(
        self,
        database: Engine | str,
        *,
        consumer: str,
        group: str | None = None,
        retention: float = retention.RETENTION,
        row_lock: bool = False,
        lock_timeout: float = 5.0,
        statement_timeout: float = 60.0,
        pool_size: int = 8,
    ) -> None:
        self.consumer = _checked(consumer)
        self.group = group or f"outbox-{consumer}"
        self._retention = retention
        self._own: Database | None = None
        if isinstance(database, Engine):
            self._engine = database
        else:
            self._own = Database(
                database, pool_size=pool_size, lock_timeout=lock_timeout, statement_timeout=statement_timeout
            )
            self._engine = self._own.engine
        self._subscriptions = Subscriptions()
        self._rows = RowTransaction(self._engine, consumer, lock_timeout=lock_timeout, row_lock=row_lock)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have handlers."""
        return self._subscriptions.topics

    def handler(
        self, *, topic: str, tag: str | None = None, key: Extractor | None = None, message_id: bool = False
    ) -> Callable[[H], H]:
        """Registers ``def on_paid(message, session)`` for a topic (and a tag; None: every other tag).

        The key is the property ``outbox-key``, else what ``key`` finds (``header("order-id")``), else KEYS if there is
        exactly one, else, with ``message_id``, the broker's unique id, which tells redeliveries but not re-sends.

        The handler must not end its transaction. It raises ``Permanent`` to have the message parked; any other
        exception has it delivered again.
        """

        def register(function: H) -> H:
            self._subscriptions.add(topic, tag, Subscription(function, key, message_id))
            return function

        return register

    def check(self) -> None:
        """Raises unless there are handlers and the tables; logs a retention that is too short."""
        if not self.topics:
            raise SettingsError(f"inbox {self.consumer!r}: no handlers; register one with @inbox.handler(topic=…)")
        with self._engine.connect() as connection:
            migrate.check_on(connection)
        retention.warn_if_short(self._retention)

    def process(self, delivery: Delivery) -> Outcome:
        """Runs the delivery's handler, unless its effect is durable already."""
        subscription = self._subscriptions.of(delivery)
        if subscription is None:
            return Filtered()
        try:
            key = subscription.key_of(delivery)
        except Exception as error:  # noqa: BLE001 -- named in the outcome, which the runner logs
            return outcome_of(error)
        if key is None:
            return NoKey("no outbox-key, nothing found by the handler's key setting, and not exactly one KEYS")
        if reason := retention.outlived(delivery.born_at, self._retention, time.time()):
            return Park(reason)
        return self._rows.execute(Message.of(delivery, key), subscription.handler)

    def park(self, delivery: Delivery, reason: str) -> bool:
        """Stores the delivery in the parking table."""
        parking.park(self._engine, self.consumer, delivery, self._key_or_none(delivery), reason)
        return True

    def purge(self) -> int:
        """Forgets one batch of effects older than the retention."""
        return retention.purge(self._engine, self.consumer, self._retention)

    def _key_or_none(self, delivery: Delivery) -> str | None:
        """The key if it can be found: a message is parked with or without it."""
        subscription = self._subscriptions.of(delivery)
        try:
            return subscription.key_of(delivery) if subscription else None
        except Exception:
            log.exception("message %s: its key cannot be read; parked without it", delivery.unique_id)
            return None

    def close(self) -> None:
        """Closes the connections, unless the engine was passed in."""
        if self._own:
            self._own.close()


def _checked(consumer: str) -> str:
    if not consumer.strip() or len(consumer.encode()) > CONSUMER_BYTES or not consumer.isprintable():
        raise SettingsError(f"consumer: {consumer!r} must be 1 to {CONSUMER_BYTES} bytes of printable text")
    return consumer
