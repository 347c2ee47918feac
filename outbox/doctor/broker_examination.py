"""Reads the brokers part by part and has each judged; what cannot be read is a finding itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from outbox.brokers.examiner import Examiner, NotMade, OutOfReach
from outbox.brokers.ledger import CannotTell
from outbox.doctor import broker_checks, broker_subjects
from outbox.doctor.database_examination import Known
from outbox.doctor.findings import Finding, Level
from outbox.settings import Settings

#: Discarded halves that are looked at, latest first.
_DISCARDED: Final = 256

Fact = TypeVar("Fact")


class BrokerExamination:
    """Everything about the brokers of the cluster, and about what the database named to ask them."""

    def __init__(self, settings: Settings, examiner: Examiner, known: Known, groups: Sequence[str]) -> None:
        """``groups``: consumer groups."""
        self._settings = settings
        self._examiner = examiner
        self._known = known
        self._groups = groups
        #: Parts that could not be read since the last look.
        self._unread: list[Finding] = []

    def findings(self) -> Iterator[Finding]:
        """A broker that does not answer is asked nothing more."""
        try:
            masters = self._examiner.masters()
        except CannotTell as problem:
            begins = isinstance(problem, NotMade) and not self._known.published
            yield broker_subjects.BROKER_REACHABLE.judged("cluster", str(problem), None if begins else Level.PROBLEM)
            return
        if not masters:
            yield broker_subjects.BROKER_REACHABLE.problem("cluster", "the name servers know no broker")
        reached: list[str] = []
        for broker in masters:
            yield from self._of_broker(broker, reached)
        yield from self._of_topics(reached)
        yield from self._of_groups(reached)

    def _of_broker(self, broker: str, reached: list[str]) -> Iterator[Finding]:
        """Adds it to ``reached`` where it answers, be it with a refusal."""
        about, settings = f"broker {broker}", dict[str, str]()
        try:
            settings.update(self._examiner.settings(broker))
        except OutOfReach as problem:
            yield broker_subjects.BROKER_REACHABLE.problem(about, str(problem))
            return
        except CannotTell as problem:
            self._unread.append(broker_subjects.BROKER_READABLE.warning(about, str(problem)))
        reached.append(broker)
        yield broker_subjects.BROKER_REACHABLE.ok(about, "answers")
        yield from broker_checks.of_settings(broker, settings, self._expected())
        yield from self._of_runtime(broker, settings)
        yield from self._of_discarded(broker)
        yield from self._of_listeners(broker)
        yield from self._told()

    def _of_runtime(self, broker: str, settings: Mapping[str, str]) -> Iterator[Finding]:
        for runtime in self._read(broker, self._examiner.runtime):
            yield from broker_checks.of_runtime(broker, runtime, settings)

    def _of_discarded(self, broker: str) -> Iterator[Finding]:
        for topic in self._read(broker, self._examiner.discarded, _DISCARDED):
            yield from broker_checks.of_discarded(broker, topic, self._known.origin, self._settings.service)

    def _of_listeners(self, broker: str) -> Iterator[Finding]:
        own = self._settings.producer_group
        for group, committed in sorted(self._known.groups.items()):
            needed = committed > 0 or (group == own and self._known.pending)
            for clients in self._read(broker, self._examiner.listeners, group):
                yield broker_checks.of_listeners(f"{group} at {broker}", clients, committed, needed=needed)

    def _of_topics(self, brokers: Sequence[str]) -> Iterator[Finding]:
        for topic, mode in sorted(self._known.topics.items()):
            found = {at: facts for at in brokers for facts in self._read(at, self._examiner.topic, topic)}
            yield from self._told()
            yield from broker_checks.of_topic(topic, mode, found) if found else ()

    def _of_groups(self, brokers: Sequence[str]) -> Iterator[Finding]:
        for group in self._groups:
            found = {at: facts for at in brokers for facts in self._read(at, self._examiner.group, group)}
            yield from self._told()
            yield from broker_checks.of_group(group, found) if found else ()

    def _expected(self) -> broker_checks.Expected:
        ours = self._settings
        return broker_checks.Expected(ours.retention, ours.lease, ours.broker_retention, ours.check_horizon)

    def _read(self, broker: str, read: Callable[..., Fact], *arguments: object) -> tuple[Fact, ...]:
        """The one fact; none: it could not be read, and ``_told`` will say so."""
        try:
            return (read(broker, *arguments),)
        except CannotTell as problem:
            self._unread.append(broker_subjects.BROKER_READABLE.warning(f"broker {broker}", str(problem)))
            return ()

    def _told(self) -> list[Finding]:
        unread, self._unread = self._unread, []
        return unread
