"""What a transport gives the contract suite, and the few words the suite is written in.

To plug a transport in: write a fixture ``<name>_rig`` that returns a ``Rig`` (any scope; skip where the server is
missing), import it in ``conftest.py`` and add ``<name>`` to ``TRANSPORTS`` there.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from outbox.brokers.base import (
    Answer,
    Broker,
    Capabilities,
    Check,
    Ended,
    Ending,
    Half,
    Outage,
    Outgoing,
    Prepared,
    Sent,
    Sought,
    Stored,
)
from outbox.brokers.source import Delivery, Source
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting
from tests.waiting import expect_soon

#: Seconds for a call that a broker answers at once, unless the machine stands still.
PATIENCE = 60.0

Effect = TypeVar("Effect")


@dataclass(frozen=True, slots=True)
class Visible:
    """A message that consumers of a topic can see."""

    unique_id: str
    #: KEYS as stored, blanks and all.
    key: str
    tag: str | None
    #: At least the user properties; the broker's own may stand among them.
    properties: Mapping[str, str]
    body: bytes
    #: Where it lies: the order is asserted within one queue only.
    queue: int


class Rig(Protocol):
    """One transport and the broker behind it. Everything that the rig opens, it closes at the end of the test."""

    #: What every ``Broker`` of this transport must say of itself.
    capabilities: Capabilities
    #: Seconds within which a message becomes visible, a look-up sees it, a due delivery comes again.
    deadline: float
    #: Seconds within which the broker asks about a half that was just stored, or asks again.
    check_deadline: float
    #: The shortest useful invisible time, in seconds.
    short_invisible: float
    #: Two delays, in seconds, whose redeliveries come in this order whatever the broker's own delay is.
    delays: tuple[float, float]
    #: Whether a live delivery is nobody else's, also while members of the group come and go.
    exclusive: bool
    #: Whether a group can be orderly; where not, ``orderly_source`` raises ``SettingsError``.
    orderly: bool

    def open(self, group: str) -> Broker:
        """A connection under a producer group."""
        ...

    def away(self, group: str) -> Broker:
        """A connection to a broker that cannot be reached."""
        ...

    def source(self, topic: str, group: str, invisible: float) -> Source:
        """One more member of a consumer group; a new group starts at the beginning of the topic."""
        ...

    def orderly_source(self, topic: str, group: str, invisible: float) -> Source:
        """One more member of an orderly group."""
        ...

    def fresh_topic(self) -> str:
        """An empty topic that accepts half messages and that consumers can read."""
        ...

    def fresh_plain_topic(self) -> str:
        """An empty topic that accepts plain messages and keeps lanes; a proxy does not let both kinds into one."""
        ...

    def fresh_timed_topic(self) -> str:
        """An empty topic for plain messages that the broker's timer delivers: of a kind of its own behind a proxy."""
        ...

    def fresh_group(self) -> str:
        """A group name that nobody has used; good for producers and for consumers."""
        ...

    def visible(self, topic: str) -> Sequence[Visible]:
        """Everything that a new group would find in the topic now, in queue order; [] for an unknown topic."""
        ...

    def nowhere(self, half: Half) -> Half:
        """The half with a well-formed handle at which the broker holds nothing."""
        ...


def message(topic: str, **fields: object) -> Outgoing:
    """A message with an identity of its own; ``fields`` replace the defaults."""
    unique_id = unique_ids.fresh()
    defaults: dict[str, object] = {"body": b"body", "unique_id": unique_id, "key": f"key-{unique_id}", "lane": "one"}
    return Outgoing(topic=topic, **{**defaults, **fields})  # type: ignore[arg-type]


def now() -> datetime:
    """The wall clock as ``find`` wants it."""
    return datetime.now(UTC)


def stored(outcome: Prepared) -> Half:
    """The half of an outcome that must be ``Stored``."""
    assert isinstance(outcome, Stored), outcome
    return outcome.half


def outcomes_of(give: Callable[[Sequence[Outgoing], float], list[Effect]], batch: Sequence[Outgoing]) -> list[Effect]:
    """What becomes of a batch at a server that is there.

    One that stands still while it is connected to is away, to a client; then nothing is stored, and it is given again.
    """
    end = monotonic() + PATIENCE
    outcomes = give(batch, PATIENCE)
    while monotonic() < end and (away := [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Outage)]):
        for n, outcome in zip(away, give([batch[n] for n in away], PATIENCE), strict=True):
            outcomes[n] = outcome
    return outcomes


def send_all(broker: Broker, batch: Sequence[Outgoing]) -> None:
    """Sends plain messages; the broker must accept them."""
    outcomes = outcomes_of(broker.send, batch)
    assert [type(outcome) for outcome in outcomes] == [Sent] * len(batch), outcomes


def prepare_all(broker: Broker, batch: Sequence[Outgoing]) -> list[Half]:
    """Stores halves; the broker must accept them."""
    return [stored(outcome) for outcome in outcomes_of(broker.prepare, batch)]


def prepare_one(broker: Broker, outgoing: Outgoing) -> Half:
    """Stores one half; the broker must accept it."""
    (half,) = prepare_all(broker, [outgoing])
    return half


def end_one(broker: Broker, half: Half, verdict: Verdict) -> Ended:
    """Ends one half with time to spare."""
    (ended,) = broker.resolve([Ending(half, verdict)], until=monotonic() + PATIENCE)
    return ended


def end_all(broker: Broker, halves: Sequence[Half], verdict: Verdict, *, within: float = PATIENCE) -> None:
    """Ends halves, again and again where their broker is just coming back; every answer is a confirmation.

    One that is busy gets its time: a COMMIT that is sent again, because the first one still waits there, makes a second
    message.
    """
    left = list(halves)

    def done() -> bool:
        ended = broker.resolve([Ending(half, verdict) for half in left], soon())
        left[:] = [
            half for half, said in zip(left, ended, strict=True) if said.confirmation is not Confirmation.CONFIRMED
        ]
        return not left

    expect_soon(done, f"{len(left)} halves are ended", within=within)


def publish(broker: Broker, outgoing: Outgoing) -> Half:
    """Stores a half and commits it; asserts the confirmation where the transport has one."""
    half = prepare_one(broker, outgoing)
    ended = end_one(broker, half, Verdict.COMMIT)
    if broker.capabilities.confirms:
        assert ended.confirmation is Confirmation.CONFIRMED, ended
    return half


def ids(rig: Rig, topic: str) -> list[str]:
    """The unique ids that are visible in the topic, repeats included."""
    return [seen.unique_id for seen in rig.visible(topic)]


def settled_ids(rig: Rig, broker: Broker, topic: str) -> list[str]:
    """What is visible once everything written so far has become so: a last message in the same lane bounds it."""
    last = message(topic)
    publish(broker, last)
    expect_soon(lambda: last.unique_id in ids(rig, topic), "the bounding message is visible", within=rig.deadline)
    return [seen for seen in ids(rig, topic) if seen != last.unique_id]


@dataclass(slots=True)
class Asked:
    """An ``OnCheck`` that remembers what it was asked and answers by a policy."""

    #: What to do about a check; the default answers UNKNOWN.
    policy: Callable[[Check, Answer], Ended] = field(default=lambda check, answer: answer(Verdict.UNKNOWN, soon()))
    checks: list[Check] = field(default_factory=list)
    answers: list[tuple[str, Ended]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, check: Check, answer: Answer) -> None:
        """Remembers the check, then follows the policy."""
        with self._lock:
            self.checks.append(check)
        ended = self.policy(check, answer)
        with self._lock:
            self.answers.append((check.half.half_id, ended))

    def times(self, half: Half) -> int:
        """How often it was asked about the half, whichever copy of it."""
        with self._lock:
            return sum(check.half.half_id == half.half_id for check in self.checks)

    def of(self, half: Half) -> list[Check]:
        """The checks about the half."""
        with self._lock:
            return [check for check in self.checks if check.half.half_id == half.half_id]


def soon() -> float:
    """A time limit that no healthy broker misses."""
    return monotonic() + PATIENCE


def look_up(broker: Broker, half: Half, since: datetime) -> Sighting:
    """What the broker knows of one half."""
    (sighting,) = broker.find([Sought(half, since)], soon())
    return sighting


def await_check(rig: Rig, asked: Asked, half: Half, times: int = 1) -> Check:
    """Waits until the half has been asked about ``times`` times in all; the latest check."""
    expect_soon(
        lambda: asked.times(half) >= times, f"check {times} of {half.half_id}", within=rig.check_deadline * times
    )
    return asked.of(half)[-1]


def listen(rig: Rig, broker: Broker, topic: str, asked: Callable[[Check, Answer], None], *groups: str) -> None:
    """Starts to listen and waits until the broker knows."""
    broker.listen([topic], asked, groups)
    expect_soon(broker.checks_ready, "the listener is registered", within=rig.check_deadline)


def receive_all(rig: Rig, source: Source, wanted: int) -> list[Delivery]:
    """Receives until ``wanted`` deliveries have come; fails when they do not."""
    received: list[Delivery] = []
    end = time.monotonic() + rig.deadline
    while len(received) < wanted:
        assert time.monotonic() < end, f"{len(received)} of {wanted} deliveries within {rig.deadline} s"
        received += source.receive(limit=wanted - len(received), wait=0.5)
    return received


def receive_until(rig: Rig, source: Source, unique_id: str, attempt: int) -> list[Delivery]:
    """Receives, acknowledging nothing, until this attempt of this message, or a later one, has come; all that came.

    A delivery whose time is over before a source could hand it out is dropped, and its number is left out.
    """
    received: list[Delivery] = []
    end = time.monotonic() + rig.deadline
    while True:
        assert time.monotonic() < end, f"no attempt {attempt} of {unique_id} within {rig.deadline} s"
        for delivery in source.receive(limit=1, wait=0.5):
            received.append(delivery)
            if delivery.unique_id == unique_id and delivery.attempt >= attempt:
                return received


def answer_in_time(
    rig: Rig, source: Source, unique_id: str, answer: Callable[[Delivery], Effect]
) -> tuple[Delivery, Effect, list[Delivery]]:
    """Receives until an answer to this message has an effect; the delivery, the effect, and all that came before.

    It has none where the machine stood still for a delivery's whole, short time: then the message comes again.
    """
    received: list[Delivery] = []
    end = time.monotonic() + rig.deadline
    while True:
        assert time.monotonic() < end, f"no delivery of {unique_id} was answered within {rig.deadline} s"
        for delivery in source.receive(limit=1, wait=0.5):
            if delivery.unique_id == unique_id and (effect := answer(delivery)):
                return delivery, effect, received
            received.append(delivery)


def attempts_of(unique_id: str, received: Sequence[Delivery]) -> int:
    """The number of the latest attempt that came, or that waits where none has."""
    return max([1, *(delivery.attempt for delivery in received if delivery.unique_id == unique_id)])
