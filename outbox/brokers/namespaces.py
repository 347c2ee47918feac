"""RocketMQ's namespaces: one cluster shared by tenants, whose topics and groups carry a prefix on the wire.

Topic ``payments`` in namespace ``NS`` is ``NS%payments`` to the broker, group ``orders`` is ``NS%orders``, and what the
broker derives from a group keeps its own prefix in front (``%RETRY%NS%orders``, ``%DLQ%NS%orders``; ``NamespaceUtil``
of RocketMQ). Rows, rights of handlers and answers to checks name topics and groups without it: the wrappers here are
the one place where the two meet.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from outbox.brokers.base import (
    Answer,
    Broker,
    Capabilities,
    Check,
    Ended,
    Ending,
    Half,
    OnCheck,
    Outgoing,
    Prepared,
    Publication,
    Sought,
    Stored,
)
from outbox.brokers.examiner import DiscardTopic, Examiner, GroupFacts, Runtime, TopicFacts
from outbox.brokers.ledger import Copies, Ledger, Seen, Wanted
from outbox.brokers.source import Delivery, Source
from outbox.verdict import Sighting

_BETWEEN: Final = "%"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace; "" is none, and leaves every name as it is."""

    name: str = ""

    def wrap(self, name: str) -> str:
        """A topic or group as the broker knows it."""
        return f"{self.name}{_BETWEEN}{name}" if self.name else name

    def bare(self, wrapped: str) -> str:
        """A topic or group as we know it; one of another namespace is left as it is."""
        return wrapped.removeprefix(f"{self.name}{_BETWEEN}") if self.name else wrapped

    def broker(self, inner: Broker) -> Broker:
        """The broker with names of this namespace; its own group is wrapped by whoever opens it."""
        return NamespacedBroker(inner, self) if self.name else inner

    def source(self, inner: Source) -> Source:
        """The source with names of this namespace; its topics and group are wrapped by whoever opens it."""
        return NamespacedSource(inner, self) if self.name else inner

    def ledger(self, inner: Ledger) -> Ledger:
        """The ledger with names of this namespace."""
        return NamespacedLedger(inner, self) if self.name else inner

    def examiner(self, inner: Examiner) -> Examiner:
        """The examiner with names of this namespace."""
        return NamespacedExaminer(inner, self) if self.name else inner


class NamespacedBroker:
    """See ``outbox.brokers.base.Broker``."""

    def __init__(self, inner: Broker, namespace: Namespace) -> None:
        self._inner = inner
        self._space = namespace

    @property
    def capabilities(self) -> Capabilities:
        """Those of the transport."""
        return self._inner.capabilities

    @property
    def group(self) -> str:
        """The producer group, without the namespace."""
        return self._space.bare(self._inner.group)

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        """Halves of the namespace's topics and group."""
        outcomes = self._inner.prepare(self._sent(messages), timeout)
        return [Stored(self._ours(it.half)) if isinstance(it, Stored) else it for it in outcomes]

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Ends halves of the namespace."""
        return self._inner.resolve([replace(it, half=self._theirs(it.half)) for it in endings], until)

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        """Plain messages to the namespace's topics."""
        return self._inner.send(self._sent(messages), timeout)

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """Looks into the namespace's topics."""
        return self._inner.find([replace(it, half=self._theirs(it.half)) for it in sought], until)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        """Checks of the namespace's groups, told with names of ours."""

        def on_check_of_ours(check: Check, answer: Answer) -> None:
            """The answer is bound to the half as the broker knows it."""
            on_check(replace(check, half=self._ours(check.half)), answer)

        wrap = self._space.wrap
        self._inner.listen([wrap(it) for it in topics], on_check_of_ours, [wrap(it) for it in groups])

    def reachable(self, timeout: float) -> bool:
        """As the transport says."""
        return self._inner.reachable(timeout)

    def checks_ready(self) -> bool:
        """As the transport says."""
        return self._inner.checks_ready()

    def close(self) -> None:
        """Closes the transport."""
        self._inner.close()

    def _sent(self, messages: Sequence[Outgoing]) -> list[Outgoing]:
        return [replace(it, topic=self._space.wrap(it.topic)) for it in messages]

    def _theirs(self, half: Half) -> Half:
        return replace(half, topic=self._space.wrap(half.topic), group=self._space.wrap(half.group))

    def _ours(self, half: Half) -> Half:
        return replace(half, topic=self._space.bare(half.topic), group=self._space.bare(half.group))


class NamespacedSource:
    """See ``outbox.brokers.source.Source``."""

    def __init__(self, inner: Source, namespace: Namespace) -> None:
        self._inner = inner
        self._space = namespace

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Deliveries whose topic is told without the namespace."""
        return [self._ours(it) for it in self._inner.receive(limit, wait)]

    def acknowledge(self, delivery: Delivery) -> bool:
        """As ``Source.acknowledge``."""
        return self._inner.acknowledge(self._theirs(delivery))

    def later(self, delivery: Delivery, delay: float) -> bool:
        """As ``Source.later``."""
        return self._inner.later(self._theirs(delivery), delay)

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        """As ``Source.renew``."""
        renewed = self._inner.renew(self._theirs(delivery), invisible)
        return None if renewed is None else self._ours(renewed)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """As ``Source.bury``."""
        return self._inner.bury(self._theirs(delivery), reason)

    def close(self) -> None:
        """Closes the transport."""
        self._inner.close()

    def _ours(self, delivery: Delivery) -> Delivery:
        return replace(delivery, topic=self._space.bare(delivery.topic))

    def _theirs(self, delivery: Delivery) -> Delivery:
        return replace(delivery, topic=self._space.wrap(delivery.topic))


class NamespacedLedger:
    """See ``outbox.brokers.ledger.Ledger``."""

    def __init__(self, inner: Ledger, namespace: Namespace) -> None:
        self._inner = inner
        self._space = namespace

    def knows(self, topic: str) -> bool:
        """As ``Ledger.knows``."""
        return self._inner.knows(self._space.wrap(topic))

    def exists(self, topic: str) -> bool:
        """As ``Ledger.exists``."""
        return self._inner.exists(self._space.wrap(topic))

    def oldest(self, topic: str) -> datetime | None:
        """As ``Ledger.oldest``."""
        return self._inner.oldest(self._space.wrap(topic))

    def copies(self, wanted: Sequence[Wanted]) -> list[Copies]:
        """As ``Ledger.copies``."""
        found = self._inner.copies([replace(it, topic=self._space.wrap(it.topic)) for it in wanted])
        return [replace(it, messages=[self._ours(seen) for seen in it.messages]) for it in found]

    def messages(self, topic: str, since: datetime, until: datetime) -> Iterator[Seen]:
        """As ``Ledger.messages``."""
        return map(self._ours, self._inner.messages(self._space.wrap(topic), since, until))

    def close(self) -> None:
        """Closes the transport."""
        self._inner.close()

    def _ours(self, seen: Seen) -> Seen:
        return replace(seen, topic=self._space.bare(seen.topic))


class NamespacedExaminer:
    """See ``outbox.brokers.examiner.Examiner``; brokers have no namespace, discarded halves are those of all."""

    def __init__(self, inner: Examiner, namespace: Namespace) -> None:
        self._inner = inner
        self._space = namespace

    def masters(self) -> Collection[str]:
        """As ``Examiner.masters``."""
        return self._inner.masters()

    def settings(self, broker: str) -> Mapping[str, str]:
        """As ``Examiner.settings``."""
        return self._inner.settings(broker)

    def runtime(self, broker: str) -> Runtime:
        """As ``Examiner.runtime``."""
        return self._inner.runtime(broker)

    def topic(self, broker: str, topic: str) -> TopicFacts | None:
        """As ``Examiner.topic``."""
        return self._inner.topic(broker, self._space.wrap(topic))

    def group(self, broker: str, group: str) -> GroupFacts | None:
        """As ``Examiner.group``."""
        return self._inner.group(broker, self._space.wrap(group))

    def listeners(self, broker: str, group: str) -> int:
        """As ``Examiner.listeners``."""
        return self._inner.listeners(broker, self._space.wrap(group))

    def discarded(self, broker: str, limit: int) -> DiscardTopic:
        """As ``Examiner.discarded``; topics of this namespace are told without it."""
        found = self._inner.discarded(broker, limit)
        return replace(found, newest=[replace(it, topic=self._space.bare(it.topic)) for it in found.newest])

    def close(self) -> None:
        """Closes the transport."""
        self._inner.close()
