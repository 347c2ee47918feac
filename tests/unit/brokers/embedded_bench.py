"""An embedded broker under a clock that the test sets."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from outbox.brokers.base import Broker, Ended, Ending, Half, Outgoing, Stored
from outbox.brokers.embedded import BrokerTiming, EmbeddedBroker, EmbeddedInspector, EmbeddedSource
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict

TOPIC = "orders"
GROUP = "shop"
#: RocketMQ's own times, but a registration that outlives the leaps of the clock.
PATIENT = BrokerTiming(listener_expiry=1e9, poll_interval=0.005)


@dataclass(slots=True)
class SetClock:
    """Seconds since some past; moves only when told."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now

    def moment(self) -> datetime:
        """The time as ``find`` wants it."""
        return datetime.fromtimestamp(self.now, UTC)

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds


@dataclass(slots=True)
class Bench:
    """One file, its clock, and what is opened on it."""

    path: Path
    timing: BrokerTiming = PATIENT
    clock: SetClock = field(default_factory=SetClock)
    opened: list[EmbeddedBroker | EmbeddedSource | EmbeddedInspector] = field(default_factory=list)

    def broker(self, group: str = GROUP) -> EmbeddedBroker:
        """One more connection."""
        broker = EmbeddedBroker(self.path, group, self.timing, self.clock)
        self.opened.append(broker)
        return broker

    def source(self, group: str = "points", invisible: float = 60.0, *, orderly: bool = False) -> EmbeddedSource:
        """One more member of a consumer group."""
        source = EmbeddedSource(self.path, group, [TOPIC], invisible, self.timing, self.clock, orderly=orderly)
        self.opened.append(source)
        return source

    def inspector(self) -> EmbeddedInspector:
        """Eyes on the file; looking does the housekeeping that is due."""
        inspector = EmbeddedInspector(self.path, self.timing, self.clock)
        self.opened.append(inspector)
        return inspector

    def close(self) -> None:
        """Closes everything."""
        for each in self.opened:
            each.close()


def bench_in(folder: Path, timing: BrokerTiming = PATIENT) -> Iterator[Bench]:
    """For a fixture: a bench on a new file, closed in the end."""
    bench = Bench(folder / "broker.db", timing)
    yield bench
    bench.close()


def message(body: bytes = b"body", key: str = "k", topic: str = TOPIC, lane: str | None = None) -> Outgoing:
    """A message with an identity of its own."""
    return Outgoing(topic, body, unique_ids.fresh(), key, lane=lane)


def prepare(broker: Broker, outgoing: Outgoing | None = None) -> Half:
    """Stores one half."""
    (outcome,) = broker.prepare([outgoing or message()], timeout=60)
    assert isinstance(outcome, Stored), outcome
    return outcome.half


def end(broker: Broker, half: Half, verdict: Verdict = Verdict.COMMIT) -> Ended:
    """Ends one half."""
    (ended,) = broker.resolve([Ending(half, verdict)], until=monotonic() + 60)
    return ended
