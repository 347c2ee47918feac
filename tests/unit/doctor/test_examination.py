"""The examination as a whole, on a broker made of answers: what cannot be read is a finding, and the rest goes on."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outbox import migrate
from outbox.brokers.examiner import DiscardTopic, Examiner, GroupFacts, OutOfReach, Runtime, TopicFacts
from outbox.brokers.ledger import CannotTell
from outbox.doctor.examination import examine
from outbox.doctor.findings import Finding, Level
from outbox.lifecycle import State
from outbox.settings import Settings, load
from outbox.store.database import Database
from outbox.wiring import open_examiner
from tests.integration.rows import added, force
from tests.unit.doctor.cases import ids, not_ok
from tests.unit.doctor.test_broker_checks import HEALTHY, TOPIC


def refuses(*_: object) -> None:
    raise CannotTell("code 16: no permission")


def is_away(*_: object) -> None:
    raise OutOfReach("no answer within 3 s")


@dataclass
class Answers:
    """An examiner that answers well, but for the methods that ``instead`` replaces."""

    instead: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def masters(self) -> Collection[str]:
        self._called("masters")
        return ("a",)

    def settings(self, broker: str) -> Mapping[str, str]:
        self._called("settings", broker)
        return HEALTHY

    def runtime(self, broker: str) -> Runtime:
        self._called("runtime", broker)
        return Runtime("5.4.0", 0.5)

    def topic(self, broker: str, topic: str) -> TopicFacts | None:
        self._called("topic", broker, topic)
        return TOPIC

    def group(self, broker: str, group: str) -> GroupFacts | None:
        self._called("group", broker, group)
        return GroupFacts(consumes=True, retries=16)

    def listeners(self, broker: str, group: str) -> int:
        self._called("listeners", broker, group)
        return 1

    def discarded(self, broker: str, limit: int) -> DiscardTopic:
        self._called("discarded", broker)
        return DiscardTopic(0, [])

    def close(self) -> None:
        self._called("close")

    def _called(self, name: str, *arguments: object) -> None:
        self.asked.append(name)
        if name in self.instead:
            self.instead[name](*arguments)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(
        database_url=f"sqlite:///{tmp_path / 'outbox.db'}", broker_url="rocketmq://127.0.0.1:1", origin="orders"
    )


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    migrate.upgrade(database)
    yield database
    database.close()


def examined(settings: Settings, database: Database, examiner: Examiner | None) -> list[Finding]:
    return list(examine(settings, database, examiner, ["payments"], ["stock"]))


def test_all_parts_are_read(settings: Settings, database: Database) -> None:
    # Given a broker and a database that answer / Then each part says something, and only the silent listener is told
    findings = examined(settings, database, Answers())
    assert not_ok(findings) == {"listener-heartbeat": Level.NOTE}
    assert {"message-index", "broker-version", "topic", "consumer-group", "discarded-halves", "origin"} <= ids(findings)


@pytest.mark.parametrize("part", ["settings", "runtime", "topic", "group", "listeners", "discarded"])
def test_a_part_that_is_refused_is_a_finding_and_the_others_go_on(
    settings: Settings, database: Database, part: str
) -> None:
    # Given a broker that refuses one question; When it is examined
    examiner = Answers({part: refuses})
    findings = examined(settings, database, examiner)
    # Then that is told, and every question was put all the same
    assert not_ok(findings) == {"listener-heartbeat": Level.NOTE, "broker-readable": Level.WARNING}
    assert [it.seen for it in findings if it.id == "broker-readable"] == ["code 16: no permission"]
    assert set(examiner.asked) == {"masters", "settings", "runtime", "topic", "group", "listeners", "discarded"}


def test_a_broker_that_is_away_is_asked_once(settings: Settings, database: Database) -> None:
    examiner = Answers({"settings": is_away})
    findings = examined(settings, database, examiner)
    assert not_ok(findings) == {"listener-heartbeat": Level.NOTE, "broker-reachable": Level.PROBLEM}
    assert examiner.asked == ["masters", "settings"]


def test_name_servers_that_are_away_are_told_and_the_database_is_examined(
    settings: Settings, database: Database
) -> None:
    findings = examined(settings, database, Answers({"masters": is_away}))
    assert not_ok(findings) == {"listener-heartbeat": Level.NOTE, "broker-reachable": Level.PROBLEM}
    assert {"sqlite-journal", "schema-tables", "rows-dead"} <= ids(findings)


def test_a_database_that_is_away_is_told_without_its_password(settings: Settings) -> None:
    # Given a database that nobody serves
    database = Database("postgresql://app:a-db-secret@127.0.0.1:1/orders")
    findings = examined(settings, database, Answers())
    database.close()
    # Then that is told, and the broker is examined
    assert not_ok(findings) == {"database-reachable": Level.PROBLEM}
    assert {"message-index", "topic", "listener-registered"} <= ids(findings)
    assert "a-db-secret" not in "".join(it.seen for it in findings)


def test_missing_tables_are_one_finding(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    database = Database(f"sqlite:///{file}")
    assert not_ok(examined(settings, database, Answers())) == {"schema-revision": Level.PROBLEM}
    database.close()


def test_a_file_that_is_not_there_is_told_and_not_made(settings: Settings, tmp_path: Path) -> None:
    # Given the mistyped name of a SQLite database / Then that is told, and no empty database is left behind
    database = Database(f"sqlite:///{tmp_path / 'mistyped.db'}")
    assert not_ok(examined(settings, database, Answers())) == {"database-reachable": Level.PROBLEM}
    database.close()
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_read_is_a_finding(settings: Settings, database: Database) -> None:
    # Given a database without its heartbeats
    with database.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE outbox_heartbeat")
    # Then the schema says so, the rows' part says that it could not be read, and the identity is read all the same
    findings = examined(settings, database, Answers())
    assert not_ok(findings) == {"schema-tables": Level.PROBLEM, "database-readable": Level.WARNING}
    assert {"origin", "rows-other-group"} <= ids(findings)


def test_a_transport_without_name_servers_is_told(settings: Settings, database: Database) -> None:
    findings = examined(settings, database, None)
    assert not_ok(findings) == {"listener-heartbeat": Level.NOTE, "broker-examined": Level.NOTE}


def test_name_servers_are_asked_whatever_the_transport(settings: Settings) -> None:
    # Given each kind of broker URL / Then those with name servers have an examiner, and a proxy has none
    opened = {
        scheme: open_examiner(settings.model_copy(update={"broker_url": f"{scheme}://127.0.0.1:9876"}))
        for scheme in ("rocketmq", "rocketmq+native", "rocketmq+grpc")
    }
    assert {scheme: examiner is not None for scheme, examiner in opened.items()} == {
        "rocketmq": True,
        "rocketmq+native": True,
        "rocketmq+grpc": False,
    }
    for examiner in opened.values():
        if examiner is not None:
            examiner.close()


def test_the_embedded_broker_is_told(settings: Settings, database: Database) -> None:
    embedded = settings.model_copy(update={"broker_url": "embedded:///somewhere.db"})
    assert not_ok(examined(embedded, database, Answers()))["broker-embedded"] is Level.NOTE


def test_before_the_first_relay_nothing_is_wrong_with_an_embedded_broker(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    # Given an embedded broker that no relay has made yet, and a row that waits for one
    embedded = settings.model_copy(update={"broker_url": f"embedded://{tmp_path / 'broker.db'}"})
    (row_id,) = added(database)

    def found() -> tuple[dict[str, Level], list[str]]:
        examiner = open_examiner(embedded)
        findings = examined(embedded, database, examiner)
        assert examiner is not None
        examiner.close()
        return not_ok(findings), [it.seen for it in findings if it.id == "broker-reachable"]

    # When they are examined / Then nobody has to mend the broker, and who makes it is told
    levels, (seen,) = found()
    assert levels == {"broker-embedded": Level.NOTE, "listener-heartbeat": Level.WARNING}
    assert seen.endswith("there is no such file; the first relay makes it")
    # When messages were published before, so that the file was another one / Then that is a problem
    force(database, row_id, state=State.DELIVERED)
    assert found()[0]["broker-reachable"] is Level.PROBLEM
