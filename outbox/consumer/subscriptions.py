"""Which handler takes which message."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outbox.brokers.source import Delivery
from outbox.consumer.keys import Extractor, key_of
from outbox.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler and how it finds the key of its messages."""

    handler: Callable[..., object]
    key: Extractor | None = None
    message_id: bool = False

    def key_of(self, delivery: Delivery) -> str | None:
        """The key of a delivery; None: it has none that can be used."""
        return key_of(delivery, self.key, message_id=self.message_id)


class Subscriptions:
    """Handlers by topic and tag; a handler without a tag takes the tags that no other handler of its topic takes."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[str | None, Subscription]] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have handlers, in the order in which they came."""
        return tuple(self._by_topic)

    def add(self, topic: str, tag: str | None, subscription: Subscription) -> None:
        """Adds a handler; ``SettingsError`` if the place is taken."""
        taken = self._by_topic.setdefault(topic, {})
        if tag in taken:
            raise SettingsError(
                f"handler for topic {topic!r}, tag {tag!r}: there is one already; one inbox calls one handler per "
                "message, so give the second one an inbox with another consumer name"
            )
        taken[tag] = subscription

    def of(self, delivery: Delivery) -> Subscription | None:
        """The handler of a delivery; None: its tag is not subscribed to."""
        by_tag: dict[Any, Subscription] = self._by_topic.get(delivery.topic, {})
        return by_tag.get(delivery.tag) or by_tag.get(None)
