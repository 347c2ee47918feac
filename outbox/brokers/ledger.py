"""The auditing port: what lies visible at the broker, past all consumer groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Seen:
    """A visible message, without its body."""

    topic: str
    unique_id: str
    #: KEYS, as it was sent.
    key: str
    properties: Mapping[str, str]
    #: By the broker's clock (aware); the embedded broker keeps the moment at which the half was stored.
    stored_at: datetime
    #: Where it lies, in the transport's own words; no two visible messages have the same place.
    place: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose messages are looked for: those with this unique id, and those with this key."""

    topic: str
    key: str
    #: None: by the key alone.
    unique_id: str | None
    #: Nothing older is of interest (aware).
    since: datetime


@dataclass(frozen=True, slots=True)
class Copies:
    """The visible messages with a wanted unique id or key, others of the same key among them."""

    messages: Sequence[Seen]
    #: There are no more; False: the broker cut its answer off, or cannot look for such a key.
    complete: bool


class CannotTell(Exception):
    """The broker cannot be asked, or its answer would prove nothing; the text names the cause and the remedy."""


class Ledger(Protocol):
    """Reads what is visible and leaves no trace at the broker; every call raises ``CannotTell`` where it cannot."""

    def knows(self, topic: str) -> bool:
        """Whether the broker has the topic, or makes it for the first message."""
        ...

    def exists(self, topic: str) -> bool:
        """Whether the topic is there already."""
        ...

    def oldest(self, topic: str) -> datetime | None:
        """The moment after which no message of the topic was deleted for its age; None: the broker does not say."""
        ...

    def copies(self, wanted: Sequence[Wanted]) -> list[Copies]:
        """The visible messages of each, in order. A message that became visible just now may be missing."""
        ...

    def messages(self, topic: str, since: datetime, until: datetime) -> Iterator[Seen]:
        """The visible messages stored from ``since`` on and before ``until``, read piece by piece."""
        ...

    def close(self) -> None:
        """Frees everything."""
        ...
