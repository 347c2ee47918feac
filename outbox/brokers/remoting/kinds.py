"""What tells half messages from plain ones: flag, properties, and what the broker's yes is worth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from outbox.brokers.base import Half, Outgoing, Prepared, Publication, Sent, Stored, Unknown
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.stored import encode_properties

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Kind(Generic[Outcome]):
    """One kind of message."""

    #: ``MessageSysFlag``: 4 is TRANSACTION_PREPARED_TYPE.
    flag: int
    #: Properties that the broker reads, in their wire form.
    properties: str
    #: The outcome of a message that the broker stored.
    stored: Callable[[Outgoing, str, Frame], Outcome]


def half_kind(group: str) -> Kind[Prepared]:
    """Half messages of a producer group."""

    def stored(message: Outgoing, broker: str, answer: Frame) -> Prepared:
        """The half, at the position that the broker's answer names."""
        try:
            handle = f"{int(answer.ext['queueOffset'])} {int(answer.ext['msgId'][-16:], 16)}"
        except (KeyError, ValueError, TypeError) as problem:
            return Unknown(f"the broker's answer names no position of the half: {problem!r}")
        return Stored(Half(message.topic, message.unique_id, broker, handle, group))

    return Kind(4, encode_properties({"TRAN_MSG": "true", "PGROUP": group}), stored)


def plain_kind() -> Kind[Publication]:
    """Plain messages."""
    return Kind(0, "", lambda message, _broker, _answer: Sent(message.unique_id))
