"""What a handler sees of a message."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from outbox.brokers.base import CONTENT_TYPE
from outbox.brokers.source import Delivery
from outbox.consumer.errors import Permanent
from outbox.consumer.keys import payload_hash
from outbox.message import RESERVED_PREFIX, RESERVED_PROPERTIES


@dataclass(frozen=True, slots=True)
class Message:
    """A received message, read-only."""

    topic: str
    body: bytes
    #: The identity by which repeats are told.
    key: str
    tag: str | None
    #: Everything that travelled with it, the broker's and the toolkit's own properties included.
    properties: Mapping[str, str]
    #: The broker's UNIQ_KEY; not an identity, since sending again changes it.
    unique_id: str
    #: From 1; how often the broker delivered it to this group, as far as the broker knows.
    attempt: int
    content_type: str
    #: SHA-256 over tag and body: another message under the same key differs here.
    payload_hash: bytes

    @classmethod
    def of(cls, delivery: Delivery, key: str) -> "Message":
        """The message of a delivery."""
        return cls(
            topic=delivery.topic,
            body=delivery.body,
            key=key,
            tag=delivery.tag,
            properties=MappingProxyType(dict(delivery.properties)),
            unique_id=delivery.unique_id,
            attempt=delivery.attempt,
            content_type=delivery.properties.get(CONTENT_TYPE, "application/octet-stream"),
            payload_hash=payload_hash(delivery.tag, delivery.body),
        )

    @property
    def headers(self) -> dict[str, str]:
        """The properties that the producing application set."""
        return {
            name: value
            for name, value in self.properties.items()
            if name not in RESERVED_PROPERTIES and not name.startswith(RESERVED_PREFIX)
        }

    def json(self) -> Any:
        """The body read as JSON; raises ``Permanent`` where it is none, since no retry can change that."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Permanent(f"body of message {self.unique_id}: is not JSON ({error}); read `body` instead") from error
