"""What became of a delivery; the runner turns each outcome into what the broker is told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processed:
    """The effect and its inbox row are durable: acknowledged."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The effect of this key was durable before: acknowledged."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """No handler subscribes to this tag of the topic: acknowledged, as the broker's own tag filter would do."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another live owner has the key: given back for at least ``remaining`` seconds, what is left of its lease."""

    remaining: float = 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Nothing was kept, or nobody knows (lost answer to COMMIT): given back, and buried after the last retry.

    ``outage``: the store cannot be reached, so the next message would fare no better and no retry is charged.
    """

    reason: str
    outage: bool = False
    #: The store was there when the handler began: if that repeats, the message is at fault, not the store.
    begun: bool = False
    #: The database sacrificed the transaction to another one: it is worth another try at once.
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class Park:
    """It will never succeed: stored with its reason for an operator, then acknowledged."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoKey:
    """It has no usable key, so nothing could tell a repeat from a new message: refused, that is, parked."""

    reason: str


Outcome = Processed | Duplicate | Filtered | InProgress | Retry | Park | NoKey
