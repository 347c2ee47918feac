"""``Consumer``: what all strategies share, from the handlers to the question whether a delivery can be told at all."""

import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from outbox.brokers.source import Delivery
from outbox.consumer import retention
from outbox.consumer.failures import outcome_of
from outbox.consumer.keys import Extractor
from outbox.consumer.message import Message
from outbox.consumer.outcome import Filtered, NoKey, Outcome, Park
from outbox.consumer.schema import CONSUMER_BYTES
from outbox.consumer.subscriptions import Subscription, Subscriptions
from outbox.errors import SettingsError

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[..., object])


class Consumer(ABC):
    """The handlers of a strategy, by topic and tag; a strategy adds how its store tells repeats.

    ``consumer`` is the logical name under which effects are remembered: keep it when the broker's group changes.
    ``retention`` (seconds) is how long they are remembered; a message that was sent before that is parked.
    """

    def __init__(self, consumer: str, *, group: str | None, retention: float) -> None:
        self.consumer = _checked(consumer)
        self.group = group or f"outbox-{consumer}"
        self.retention = retention
        self._subscriptions = Subscriptions()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have handlers."""
        return self._subscriptions.topics

    def handler(
        self, *, topic: str, tag: str | None = None, key: Extractor | None = None, message_id: bool = False
    ) -> Callable[[H], H]:
        """Registers a function for a topic (and a tag; None: every other tag).

        The key is the property ``outbox-key``, else what ``key`` finds (``header("order-id")``), else KEYS if there is
        exactly one, else, with ``message_id``, the broker's unique id, which tells redeliveries but not re-sends.

        The function raises ``Permanent`` to have the message parked; any other exception has it delivered again.
        """

        def register(function: H) -> H:
            _takes_two(function, topic)
            self._subscriptions.add(topic, tag, Subscription(self._adapted(function), key, message_id))
            return function

        return register

    def check(self) -> None:
        """Raises unless there are handlers and the store can be used; logs a retention that is too short."""
        if not self.topics:
            raise SettingsError(f"consumer {self.consumer!r}: no handlers; register one with @….handler(topic=…)")
        self._check_store()
        retention.warn_if_short(self.retention)

    def process(self, delivery: Delivery) -> Outcome:
        """Runs the delivery's handler, unless its effect is durable already."""
        admitted = self.admit(delivery)
        return self.execute(*admitted) if isinstance(admitted, tuple) else admitted

    def _adapted(self, function: Callable[..., object]) -> Callable[..., object]:
        """A registered function as ``execute`` calls it."""
        return function

    @abstractmethod
    def execute(self, message: Message, handler: Callable[..., Any]) -> Outcome:
        """Runs the handler once per key, as the strategy promises; never raises for what handler or store do."""

    @abstractmethod
    def _check_store(self) -> None:
        """Raises an ``OutboxError`` that names the remedy if the store cannot be used."""

    def admit(self, delivery: Delivery) -> tuple[Message, Callable[..., Any]] | Outcome:
        """The message and its handler, or why there is nothing to execute."""
        subscription = self._subscriptions.of(delivery)
        if subscription is None:
            return Filtered()
        try:
            key = subscription.key_of(delivery)
        except Exception as error:  # noqa: BLE001 -- named in the outcome, which the runner logs
            return outcome_of(error)
        if key is None:
            return NoKey("no outbox-key, nothing found by the handler's key setting, and not exactly one KEYS")
        if reason := retention.outlived(delivery.born_at, self.retention, time.time()):
            return Park(reason)
        return Message.of(delivery, key), subscription.handler

    def _key_or_none(self, delivery: Delivery) -> str | None:
        """The key if it can be found: a message is parked with or without it."""
        subscription = self._subscriptions.of(delivery)
        try:
            return subscription.key_of(delivery) if subscription else None
        except Exception:
            log.exception("message %s: its key cannot be read; parked without it", delivery.unique_id)
            return None


def _takes_two(function: Callable[..., object], topic: str) -> None:
    """Or each message would use up its retries for a TypeError, and end as a dead letter."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C tell none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise SettingsError(
            f"handler for topic {topic!r}: takes {signature}; give it two arguments, the message and the session or "
            "lease (of BatchInbox: the messages and the session)"
        ) from error


def _checked(consumer: str) -> str:
    if not consumer.strip() or len(consumer.encode()) > CONSUMER_BYTES or not consumer.isprintable():
        raise SettingsError(f"consumer: {consumer!r} must be 1 to {CONSUMER_BYTES} bytes of printable text")
    return consumer
