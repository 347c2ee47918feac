"""The examination as a whole: the database first, since its rows name what the broker is asked about."""

from collections.abc import Iterator, Sequence

from outbox.brokers.examiner import Examiner
from outbox.doctor import broker_subjects
from outbox.doctor.broker_examination import BrokerExamination
from outbox.doctor.database_examination import DatabaseExamination
from outbox.doctor.findings import Finding
from outbox.message import Mode
from outbox.settings import Settings
from outbox.store.database import Database


def examine(
    settings: Settings, database: Database, examiner: Examiner | None, topics: Sequence[str], groups: Sequence[str]
) -> Iterator[Finding]:
    """Everything that can be looked at, part by part; changes nothing and never raises for what cannot be read.

    ``topics`` are looked at beside those of the rows, ``groups`` are consumer groups; ``examiner`` None: the broker's
    transport has nobody to ask.
    """
    of_database = DatabaseExamination(settings, database)
    yield from of_database.findings()
    known = of_database.known
    known.topics |= {topic: Mode.TRANSACTIONAL for topic in topics if topic not in known.topics}
    scheme = settings.broker_url.partition(":")[0]
    if examiner is None:
        yield broker_subjects.BROKER_EXAMINED.note("cluster", f"{scheme}: no name server to ask")
        return
    if scheme == "embedded":
        yield broker_subjects.BROKER_EMBEDDED.note("cluster", settings.broker_url)
    yield from BrokerExamination(settings, examiner, known, groups).findings()
