"""``outbox doctor`` on real servers: a healthy pair gives nothing to mend, and what is provoked is found."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

import checkback.wiring
from outbox import migrate
from outbox.brokers.embedded import BrokerTiming, EmbeddedBroker, EmbeddedInspector
from outbox.brokers.ledger import CannotTell
from outbox.columns import MYSQL_FAMILY
from outbox.identity import fresh_token
from outbox.lifecycle import State
from outbox.settings import Settings, load
from outbox.store.database import Database
from outbox.store.identity import Identity
from outbox.store.operations import Operations
from outbox.wiring import open_broker, open_examiner
from tests.contracts.rig import message, prepare_one
from tests.integration.commands import Command, in_process
from tests.integration.conftest import Copies
from tests.integration.rows import added, force
from tests.services.databases import fresh_database
from tests.services.mariadb import MariaDB
from tests.services.ports import free_port
from tests.services.postgres import Postgres
from tests.services.require import require
from tests.services.rocketmq import create_topics
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE = 120.0
#: For rows that are open and not due, however long the machine stands still before they are looked at.
NOT_LATE = timedelta(hours=1)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


def doctor(command: Command, settings: Settings, *arguments: str) -> dict[str, dict[str, Any]]:
    """What is not ok, by id; checks that the exit code goes with it."""
    where = ("--database-url", settings.database_url, "--broker-url", settings.broker_url)
    run = command("doctor", "--json", *where, "--origin", settings.service, *arguments)
    findings = json.loads(run.out)
    assert run.code == int(any(it["level"] in ("warning", "problem") for it in findings)), run.err
    return {it["id"]: it for it in findings if it["level"] != "ok"}


def mended(findings: dict[str, dict[str, Any]]) -> set[str]:
    """Ids of what somebody should mend."""
    return {name for name, it in findings.items() if it["level"] in ("warning", "problem")}


@contextmanager
def durable_database(backend: str, folder: Path) -> Iterator[str]:
    """A database at head on a server that trades nothing for speed."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'outbox.db'}"
        if backend != "sqlite":
            kind: Callable[..., Any] = {"postgresql": Postgres, "mariadb": MariaDB}[backend]
            server = stack.enter_context(require(lambda: kind(durable=True)))
            url = stack.enter_context(fresh_database(server.url))
        database = Database(url)
        migrate.upgrade(database)
        database.close()
        yield url


@contextmanager
def listening(settings: Settings) -> Iterator[None]:
    """A check-back that the brokers know and the database has heard of."""
    database, broker = Database(settings.database_url), open_broker(settings)
    listener = checkback.wiring.build(settings, database, broker)
    thread = threading.Thread(target=listener.run)
    thread.start()
    try:
        expect_soon(lambda: bool(Operations(database).figures().heartbeats), "the listener is heard", within=DEADLINE)
        yield
    finally:
        listener.stop()
        thread.join()
        broker.close()
        database.close()


def transactional_topic(namesrv: str) -> str:
    """A topic as the manual wants it."""
    topic = f"topic-{fresh_token()}"
    create_topics(namesrv, [topic, f"{topic}-b"], queues=4)
    with Admin(namesrv) as admin:
        for address in admin.brokers().values():
            admin.create_topic(address, topic, queues=4, attributes="+message.type=TRANSACTION")
            admin.create_group(address, f"group-{topic}")
    return topic


def wait_for_figures(settings: Settings) -> None:
    """For a second after its start a broker has no runtime figures."""
    examiner = open_examiner(settings)
    assert examiner is not None

    def answers() -> bool:
        try:
            return all(examiner.runtime(broker).version for broker in examiner.masters())
        except CannotTell:
            return False

    expect_soon(answers, "the broker tells its figures", within=DEADLINE)
    examiner.close()


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mariadb"])
def test_a_healthy_pair_gives_nothing_to_mend(command: Command, rocketmq: str, tmp_path: Path, backend: str) -> None:
    # Given a topic for transactional messages, an open row, a consumer group, and a listener
    topic = transactional_topic(rocketmq)
    with durable_database(backend, tmp_path) as url:
        settings = load(database_url=url, broker_url=f"rocketmq://{rocketmq}", origin=f"origin-{fresh_token()}")
        wait_for_figures(settings)
        database = Database(url)
        added(database, topic=topic, delay=NOT_LATE)
        with listening(settings):
            # When they are examined
            findings = doctor(command, settings, "--group", f"group-{topic}")
        database.close()
    # Then there are notes on what the test cluster is, and no more
    notes = {"flush-type", "broker-role", "auto-create-topics", "check-horizon-setting", "discarded-halves"}
    assert {name: it["seen"] for name, it in findings.items() if name not in notes} == {}
    assert {"flush-type", "broker-role"} <= set(findings)


def test_topics_and_groups_of_a_real_broker_are_judged(command: Command, rocketmq: str, tmp_path: Path) -> None:
    # Given a topic without a type, a topic that takes no messages, and rows of a topic that is not there
    untyped, closed = f"topic-{fresh_token()}", transactional_topic(rocketmq)
    create_topics(rocketmq, [untyped, f"{untyped}-b"], queues=4)
    with Admin(rocketmq) as admin:
        for address in admin.brokers().values():
            admin.create_topic(address, closed, queues=4, perm=4)
    with durable_database("sqlite", tmp_path) as url:
        settings = load(database_url=url, broker_url=f"rocketmq://{rocketmq}", origin=f"origin-{fresh_token()}")
        wait_for_figures(settings)
        database = Database(url)
        added(database, topic=f"missing-{untyped}", delay=NOT_LATE)
        database.close()
        # When they are examined, and a group that nobody made
        group = f"group-{fresh_token()}"
        options = ("--topic", untyped, "--topic", closed, "--group", group)
        findings = doctor(command, settings, *options)
        # Then each is found, and the missing listener too
        assert findings["topic"]["about"] == f"topic missing-{untyped}"
        assert findings["topic-type"]["about"] == f"topic {untyped}"
        assert findings["topic-permission"]["about"] == f"topic {closed}"
        assert findings["listener-registered"]["level"] == "warning"
        assert mended(findings) == {
            "topic",
            "topic-type",
            "topic-permission",
            "listener-registered",
            "listener-heartbeat",
        }
        # And looking for a group has not made it
        assert findings["consumer-group"]["level"] == "note"
        assert doctor(command, settings, "--group", group)["consumer-group"]["level"] == "note"


@pytest.fixture
def settings(migrated_url: str, tmp_path: Path) -> Settings:
    """Each back end in turn, with the embedded broker."""
    return load(database_url=migrated_url, broker_url=embedded_broker(tmp_path), origin="orders")


def embedded_broker(folder: Path) -> str:
    """URL of an embedded broker whose file is there."""
    with EmbeddedInspector(folder / "broker.db") as inspector:
        assert inspector.topics() == []
    return f"embedded://{folder / 'broker.db'}"


#: What a test server trades for speed, see ``tests/services``.
FAST = {
    "postgresql": {"postgresql-fsync", "postgresql-full-page-writes"},
    "sqlite": set[str](),
}
#: Settings of MariaDB and MySQL, what is right, and what is found otherwise.
SAFE_ON_MYSQL = {
    "innodb_flush_log_at_trx_commit": ("1", "mysql-flush-log"),
    "innodb_doublewrite": ("ON", "mysql-doublewrite"),
}


def traded(database: Database) -> set[str]:
    """What the test server trades for speed; on MySQL one that the environment names may trade nothing."""
    if database.dialect not in MYSQL_FAMILY:
        return FAST[database.dialect]
    with database.look() as connection:
        live = connection.exec_driver_sql("SHOW GLOBAL VARIABLES LIKE 'innodb_%%'").all()
    return {SAFE_ON_MYSQL[name][1] for name, value in live if name in SAFE_ON_MYSQL and value != SAFE_ON_MYSQL[name][0]}


def test_what_a_server_trades_for_speed_is_found(command: Command, settings: Settings, database: Database) -> None:
    assert mended(doctor(command, settings)) == traded(database)


@contextmanager
def as_a_user_without_rights(url: str) -> Iterator[str]:
    """A PostgreSQL user who may read and write the tables, few times at once, without durability."""
    user = f"app_{fresh_token()}"
    engine = sa.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    made = (
        f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 9",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}",
        f"ALTER ROLE {user} SET synchronous_commit = off",
        f"ALTER DATABASE {engine.url.database} SET timezone = 'Asia/Shanghai'",
        f"ALTER DATABASE {engine.url.database} SET default_transaction_isolation = 'serializable'",
    )
    with engine.connect() as connection:
        for statement in made:
            connection.exec_driver_sql(statement)
        yield engine.url.set(username=user).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP OWNED BY {user}")
        connection.exec_driver_sql(f"DROP ROLE {user}")


def test_defaults_that_postgresql_gives_a_users_sessions_are_found(
    command: Command, postgresql_copies: Copies, tmp_path: Path
) -> None:
    # Given a user whose sessions are not durable, in another time zone, and few
    with postgresql_copies(tmp_path) as administrators, as_a_user_without_rights(administrators) as url:
        # When doctor runs as that user
        settings = load(database_url=url, broker_url=embedded_broker(tmp_path), origin="orders")
        findings = doctor(command, settings)
    # Then each is told, although the daemons' own sessions set some for themselves
    levels = {name: findings[name]["level"] for name in findings if name not in FAST["postgresql"]}
    assert levels == {
        "broker-embedded": "note",
        "database-connections": "problem",
        "database-isolation": "note",
        "database-time-zone": "note",
        "listener-heartbeat": "note",
        "listener-registered": "note",
        "postgresql-synchronous-commit": "warning",
    }


def damage(database: Database) -> dict[str, str]:
    """Drops an index and a CHECK, and lets a key compare by its letters alone; what is said of each."""
    index = "ix_outbox_state" if database.dialect in MYSQL_FAMILY else "ix_outbox_claim"
    statements = {
        "postgresql": (
            f"DROP INDEX {index}",
            "ALTER TABLE outbox DROP CONSTRAINT ck_outbox_state",
            'ALTER TABLE outbox ALTER key TYPE VARCHAR(255) COLLATE "default"',
        ),
        "mysql": (
            f"DROP INDEX {index} ON outbox",
            "ALTER TABLE outbox DROP CONSTRAINT ck_outbox_state",
            "ALTER TABLE outbox MODIFY `key` VARCHAR(255) NOT NULL",
        ),
        "sqlite": (f"DROP INDEX {index}", *_without_check_and_case(database)),
    }[database.dialect]
    with database.engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.commit()
    return {"schema-tables": f"index {index} is missing", "schema-checks": "ck_outbox_state", "key-collation": "key"}


def _without_check_and_case(database: Database) -> list[str]:
    """SQLite cannot change a table: it is made again, otherwise."""
    if database.dialect != "sqlite":
        return []
    with database.engine.connect() as connection:
        made = str(connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'outbox'").scalar())
    key = next(line for line in made.splitlines() if line.strip().startswith(("key ", '"key" ')))
    check = next(line for line in made.splitlines() if "ck_outbox_state" in line)
    made = made.replace(key, key.replace(" NOT NULL", " COLLATE NOCASE NOT NULL"))
    return ["DROP TABLE outbox", made.replace(check, "")]


def test_damage_to_the_schema_is_found(command: Command, settings: Settings, database: Database) -> None:
    # Given a database that somebody changed by hand, and an index of their own, which is their right
    said = damage(database)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("CREATE INDEX ix_of_theirs ON outbox (created_at)")
        connection.commit()
    # When it is examined / Then each change is named
    findings = doctor(command, settings)
    assert mended(findings) == set(said) | traded(database)
    assert {name: findings[name]["seen"] for name in said if said[name] not in findings[name]["seen"]} == {}
    assert "ix_of_theirs" not in str(findings)


def test_rows_that_need_somebody_are_found(command: Command, settings: Settings, database: Database) -> None:
    # Given an old pending row, a decision under another group that nobody could confirm, and two dead rows
    waiting, stuck, *dead = added(database, 4)
    long_ago = sa.text("'2020-01-01 00:00:00+00'" if database.dialect == "postgresql" else "'2020-01-01 00:00:00'")
    force(database, waiting, created_at=long_ago, available_at=long_ago)
    force(database, stuck, state=State.COMMITTED, decided_at=long_ago, half_group="old-group", reason="commit denied")
    for row_id in dead:
        force(database, row_id, state=State.DEAD, reason="code 13: too large")
    with database.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO outbox_database SELECT 'a-copy', created_at FROM outbox_database")
    # When the outbox is examined
    findings = doctor(command, settings)
    # Then each is told, with its reason, and who should listen
    found = {"rows-late", "rows-old", "rows-unsettled", "rows-dead", "origin", "listener-heartbeat"}
    assert mended(findings) == found | {"listener-registered"} | traded(database)
    assert findings["rows-dead"]["seen"] == "2: 2 × code 13: too large"
    assert "1 × commit denied" in findings["rows-unsettled"]["seen"]
    assert "old-group" in findings["rows-other-group"]["seen"]
    assert findings["listener-registered"]["about"] == "producer group outbox-orders at embedded"
    assert findings["listener-registered"]["level"] == "warning"


def test_halves_that_the_embedded_broker_gave_up_are_found(command: Command, tmp_path: Path) -> None:
    # Given a half of this database and one of another one under the same name, given up after one check
    timing = BrokerTiming(transaction_timeout=0.01, check_interval=0.01, max_checks=1)
    broker_file = tmp_path / "broker.db"
    with durable_database("sqlite", tmp_path) as url:
        settings = load(database_url=url, broker_url=f"embedded://{broker_file}", origin="orders")
        database = Database(url)
        ours = f"orders/{Identity(database).database_id()}"
        database.close()
        broker = EmbeddedBroker(broker_file, settings.producer_group, timing)
        for origin in (ours, "orders/another"):
            prepare_one(broker, message("payments", properties={"outbox-origin": origin}))
        with EmbeddedInspector(broker_file, timing) as inspector:
            expect_soon(lambda: len(inspector.discarded()) == 2, "both are given up", within=DEADLINE)
        broker.close()
        # When the broker is examined / Then both are told apart
        findings = doctor(command, settings)
    assert mended(findings) == {"discarded-halves", "discarded-foreign"}
    assert "2 lie there, 1 of the 2 newest are ours" in findings["discarded-halves"]["seen"]
    assert "for payments at" in findings["discarded-halves"]["seen"]
    assert "orders/another" in findings["discarded-foreign"]["seen"]


def test_what_is_away_is_told_and_the_rest_is_examined(command: Command, tmp_path: Path) -> None:
    # Given a database, and name servers that nobody serves
    with durable_database("sqlite", tmp_path) as url:
        where = ("--database-url", url, "--broker-url", f"rocketmq://127.0.0.1:{free_port()}", "--origin", "o")
        # When they are examined, for people
        run = command("doctor", *where)
    # Then that is told with its remedy, and the database was looked at
    assert run.code == 1
    assert "problem: broker-reachable" in run.out
    assert "do:    start it, or correct OUTBOX_BROKER_URL" in run.out
    assert ["ok", "schema-revision"] in [line.split()[:2] for line in run.out.splitlines()]
    # And the embedded broker's file, which may be mistyped, is not made
    mistyped = tmp_path / "mistyped.db"
    assert "there is no such file" in command("doctor", "--broker-url", f"embedded://{mistyped}").out
    assert not mistyped.exists()
    # And wrong settings are another exit code
    assert command("doctor", "--broker-url", "kafka://somewhere:9092", "--origin", "o").code == 2
