"""The broker port: what the daemons ask of a transport, in values that every transport shares.

A transport is safe to use from several threads. No call raises for what the broker or the network does: the outcome
of each message says it. A call raises only for wrong use (``ValueError``) or after ``close`` (``BrokerClosed``).
``tests/contracts`` is the behavioural suite that every transport passes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting

#: User properties that the toolkit gives each message.
ORIGIN = "outbox-origin"
KEY = "outbox-key"
ROW_ID = "outbox-id"
TOKEN = "outbox-token"  # noqa: S105 -- a property name
MODE = "outbox-mode"
CONTENT_TYPE = "outbox-content-type"
#: RocketMQ's own name for a message's lane (``MessageConst.PROPERTY_SHARDING_KEY``).
SHARDING_KEY = "__SHARDINGKEY"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message as the transport sends it."""

    topic: str
    body: bytes
    #: RocketMQ's UNIQ_KEY, drawn by the caller: 32 hexadecimal digits.
    unique_id: str
    #: RocketMQ's KEYS: the business key.
    key: str
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Messages of one lane go to one queue; None: any queue.
    lane: str | None = None


@dataclass(frozen=True, slots=True)
class Half:
    """A half message that the broker stored, and all that is needed to end it later, from any process."""

    topic: str
    #: The UNIQ_KEY it was sent with.
    half_id: str
    #: Name of the broker that holds it (route decides its address, afresh each time).
    broker: str
    #: The transport's own words for its position; at most 255 characters; opaque to everybody else.
    handle: str
    #: The producer group it was sent under; only this group may end it.
    group: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The broker stored the half."""

    half: Half


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker stored the plain message: it is visible, or will be without our help."""

    unique_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker looked at this message and said no; it is not stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The message left and no answer came, or the answer leaves it open: perhaps stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class Outage:
    """The message never left, or the broker is overloaded or away; it is not stored."""

    reason: str
    #: Other messages may get through meanwhile: the trouble is this topic's alone, or one broker's among several.
    partial: bool = False


Prepared = Stored | Refused | Unknown | Outage
Publication = Sent | Refused | Unknown | Outage


@dataclass(frozen=True, slots=True)
class Ending:
    """A half and how to end it: COMMIT or ROLLBACK."""

    half: Half
    verdict: Verdict


def refuse_unknown(endings: Sequence[Ending]) -> None:
    """``ValueError`` for an ending that is none; each transport's ``resolve`` asks first."""
    if any(ending.verdict is Verdict.UNKNOWN for ending in endings):
        raise ValueError("endings: a half is ended by COMMIT or ROLLBACK; leave out what is UNKNOWN")


@dataclass(frozen=True, slots=True)
class Ended:
    """What the broker said to an ending."""

    confirmation: Confirmation
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sought:
    """A half that is looked up, and when the database chose it (aware)."""

    half: Half
    since: datetime


@dataclass(frozen=True, slots=True)
class Check:
    """The broker's question: what became of this half?"""

    half: Half
    #: All properties of the stored message as the broker sent them (``ORIGIN`` … ``TOKEN`` among them).
    properties: Mapping[str, str]
    #: How often the broker has asked about this half, from 1; 0 where the transport does not say.
    times: int = 0


#: Ends the half of a check: writes the verdict before ``until`` (``outbox.clock.monotonic`` seconds) or not at all.
#: UNKNOWN is answered as the protocol asks (or by silence) and gives CONFIRMED.
Answer = Callable[[Verdict, float], Ended]
#: Called by the transport, in a thread of its own, for each check. An exception is logged and answered UNKNOWN.
OnCheck = Callable[[Check, Answer], None]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do; the contract suite asserts both what it says and what it denies."""

    #: The broker's own answer to COMMIT and ROLLBACK reaches us.
    confirms: bool
    #: ``find`` can say VISIBLE and ABSENT.
    finds: bool
    #: Halves can be ended by their handle from another process than the one that sent them.
    ends_by_handle: bool
    #: Checks of a group reach only listeners of that group ("group"), or any producer of the topic ("topic").
    check_scope: str


class Broker(Protocol):
    """A connection to one RocketMQ cluster (or to the embedded broker) under one producer group."""

    @property
    def capabilities(self) -> Capabilities:
        """What this transport can do."""
        ...

    @property
    def group(self) -> str:
        """The producer group of new halves."""
        ...

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """Sends halves, pipelined, one wire attempt each; outcomes in order, within ``timeout`` seconds."""
        ...

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Ends halves, pipelined, each at most once; outcomes in the order of ``endings``.

        No COMMIT is written after ``until`` (``outbox.clock.monotonic`` seconds), and the call returns by then: what
        has no answer is UNANSWERED, and a connection on which a COMMIT is still unanswered is closed.
        """
        ...

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """Sends plain messages, pipelined; one wire attempt each; outcomes in order, within ``timeout`` seconds."""
        ...

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """Looks for visible messages with the halves' unique ids, each at the broker that holds the half; in order.

        ABSENT only from the master, with the message index on and caught up with everything that was stored before
        the call, over a range with a day's margin on both sides, from a store that goes back to the half's decision
        (by its oldest message, or because the half itself still lies in its place), and an index that lost nothing
        since in a crash. EXPIRED where the store does not: its files were deleted, or it was replaced. Everything else
        is CANNOT_TELL, and so is whatever is not known by ``until`` (``outbox.clock.monotonic`` seconds). Never raises.
        """
        ...

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        """Answers checks from now on, for ``group`` and ``groups``, about ``topics`` (none named: whatever comes).

        A second call replaces topics, groups and handler.
        """
        ...

    def reachable(self, timeout: float) -> bool:
        """Whether a broker answers within ``timeout`` seconds; stores nothing and never raises. After ``close``: False.

        Where it says no, a message would be an Outage; where it says yes, the broker may still take none.
        """
        ...

    def checks_ready(self) -> bool:
        """Whether the registration that makes the broker ask us is in place and fresh."""
        ...

    def close(self) -> None:
        """Ends what runs (nothing new is written) and frees everything; a second call does nothing."""
        ...


class BrokerClosed(RuntimeError):
    """A call on a transport after ``close``."""
