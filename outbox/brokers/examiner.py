"""The examining port: what a broker says of itself, of topics and groups, and of halves that nobody answered for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from outbox.brokers.ledger import CannotTell

#: What is read of a broker's settings, by RocketMQ's own names (``BrokerConfig``, ``MessageStoreConfig``). Nothing else
#: is: the settings hold passwords in clear.
SETTINGS: Final = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerPermission",
    "brokerRole",
    "diskMaxUsedSpaceRatio",
    "fileReservedTime",
    "flushDiskType",
    "messageIndexEnable",
    "timerWheelEnable",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionOpBatchInterval",
    "transactionTimeOut",
)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a broker says of the process that it is."""

    #: Such as ``5.4.0``; "": it does not say.
    version: str
    #: Used part of the disk of its commit log, 0 to 1; None: it does not say.
    disk_used: float | None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic at one broker."""

    #: ``NORMAL``, ``TRANSACTION``, ``MIXED``, …; None: the broker knows no types.
    message_type: str | None
    write_queues: int
    #: Bits of ``PermName``: 4 read, 2 write.
    permission: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group at one broker."""

    consumes: bool
    #: Redeliveries before a push consumer's message goes to the dead letters; None: the broker does not say.
    retries: int | None


@dataclass(frozen=True, slots=True)
class Discarded:
    """A half that the broker gave up after its last check."""

    unique_id: str
    key: str
    #: Where it should have become visible.
    topic: str
    #: Whose it is (``outbox.brokers.base.ORIGIN``); "": it was not sent by this toolkit.
    origin: str
    #: Aware; the embedded broker keeps the moment at which the half was stored.
    at: datetime


@dataclass(frozen=True, slots=True)
class DiscardTopic:
    """What lies in the topic of the discarded halves at one broker."""

    count: int
    #: The latest ones, newest first.
    newest: Sequence[Discarded]


class OutOfReach(CannotTell):
    """The server itself does not answer, so that it is no use to ask it for more."""


class NotMade(OutOfReach):
    """The embedded broker's file is not there: its first relay makes it."""


class Examiner(Protocol):
    """Reads and changes nothing; every call raises ``CannotTell`` with what could not be read and why."""

    def masters(self) -> Collection[str]:
        """The names of the cluster's brokers whose master is there."""
        ...

    def settings(self, broker: str) -> Mapping[str, str]:
        """Those of ``SETTINGS`` that the broker knows, as it writes them: times in milliseconds."""
        ...

    def runtime(self, broker: str) -> Runtime:
        """Its version and its disk."""
        ...

    def topic(self, broker: str, topic: str) -> TopicFacts | None:
        """None: the broker does not have it."""
        ...

    def group(self, broker: str, group: str) -> GroupFacts | None:
        """None: the broker does not have the consumer group."""
        ...

    def listeners(self, broker: str, group: str) -> int:
        """Clients that are registered for the producer group now."""
        ...

    def discarded(self, broker: str, limit: int) -> DiscardTopic:
        """All that lie there, counted, and the ``limit`` latest."""
        ...

    def close(self) -> None:
        """Frees everything."""
        ...
