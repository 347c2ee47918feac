"""Each finding about a database: absent where all is well, present where one thing is changed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from outbox.doctor.database_checks import of_clock, of_schema, of_server
from outbox.doctor.findings import Level
from outbox.store.examined_schema import SchemaFacts
from outbox.store.examined_server import ClockFacts, ServerFacts
from tests.unit.doctor.cases import ids, not_ok

POSTGRESQL: Final = ServerFacts(
    "postgresql",
    {
        "TimeZone": "UTC",
        "default_transaction_isolation": "read committed",
        "fsync": "on",
        "full_page_writes": "on",
        "max_connections": "100",
        "superuser_reserved_connections": "3",
        "synchronous_commit": "on",
        "synchronous_standby_names": "",
    },
    read_only=False,
    replicas=0,
    allowed=97,
    used=10,
    server=("PostgreSQL", (13, 0)),
)
MARIADB: Final = ServerFacts(
    "mariadb",
    {
        "innodb_doublewrite": "ON",
        "innodb_flush_log_at_trx_commit": "1",
        "log_bin": "ON",
        "max_connections": "100",
        "max_user_connections": "0",
        "read_only": "OFF",
        "rpl_semi_sync_master_enabled": "OFF",
        "rpl_semi_sync_master_wait_point": "AFTER_COMMIT",
        "sync_binlog": "1",
        "system_time_zone": "UTC",
        "time_zone": "SYSTEM",
        "tx_isolation": "REPEATABLE-READ",
    },
    read_only=False,
    replicas=0,
    allowed=100,
    used=10,
    server=("MariaDB", (10, 6, 0)),
)
SQLITE: Final = ServerFacts(
    "sqlite", {"journal_mode": "wal", "synchronous": "2"}, read_only=False, server=("SQLite", (3, 35, 0))
)
HEAD: Final = SchemaFacts("0003", "0003")


def changed(facts: ServerFacts, settings: Mapping[str, str]) -> ServerFacts:
    return replace(facts, settings={**facts.settings, **settings})


@pytest.mark.parametrize("facts", [POSTGRESQL, MARIADB, SQLITE], ids=lambda it: str(it.dialect))
def test_a_healthy_server_is_looked_at_and_nothing_is_found(facts: ServerFacts) -> None:
    findings = list(of_server(facts, needed=12))
    assert not_ok(findings) == {}
    assert len(ids(findings)) == {"postgresql": 9, "mariadb": 9, "sqlite": 4}[facts.dialect]


@pytest.mark.parametrize(
    ("facts", "release", "found"),
    [
        (POSTGRESQL, ("PostgreSQL", (12, 22)), {"database-release": Level.PROBLEM}),
        (POSTGRESQL, ("PostgreSQL", (18, 6)), {}),
        (MARIADB, ("MariaDB", (10, 5, 23)), {"database-release": Level.PROBLEM}),
        (MARIADB, ("MariaDB", (11, 8, 9)), {}),
        (MARIADB, ("MySQL", (5, 7, 44)), {"database-release": Level.PROBLEM}),
        (MARIADB, ("MySQL", (8, 0, 15)), {"database-release": Level.PROBLEM}),
        (MARIADB, ("MySQL", (8, 0, 16)), {}),
        (MARIADB, ("MySQL", ()), {}),
        (SQLITE, ("SQLite", (3, 34, 1)), {"database-release": Level.PROBLEM}),
    ],
)
def test_a_release_that_is_too_old(
    facts: ServerFacts, release: tuple[str, tuple[int, ...]], found: dict[str, Level]
) -> None:
    assert not_ok(list(of_server(replace(facts, server=release), needed=12))) == found


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"synchronous_commit": "off"}, {"postgresql-synchronous-commit": Level.WARNING}),
        ({"synchronous_commit": "local"}, {"postgresql-synchronous-commit": Level.NOTE}),
        ({"synchronous_commit": "remote_apply"}, {}),
        ({"fsync": "off"}, {"postgresql-fsync": Level.PROBLEM}),
        ({"full_page_writes": "off"}, {"postgresql-full-page-writes": Level.PROBLEM}),
        ({"TimeZone": "Asia/Shanghai"}, {"database-time-zone": Level.NOTE}),
        ({"default_transaction_isolation": "serializable"}, {"database-isolation": Level.NOTE}),
        ({"default_transaction_isolation": "repeatable read"}, {"database-isolation": Level.NOTE}),
    ],
    ids=str,
)
def test_a_setting_of_postgresql_is_judged(settings: Mapping[str, str], found: Mapping[str, Level]) -> None:
    assert not_ok(of_server(changed(POSTGRESQL, settings), needed=12)) == found


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"innodb_flush_log_at_trx_commit": "2"}, {"mysql-flush-log": Level.PROBLEM}),
        ({"sync_binlog": "0"}, {"mysql-sync-binlog": Level.WARNING}),
        ({"sync_binlog": "0", "log_bin": "OFF"}, {}),
        ({"innodb_doublewrite": "OFF"}, {"mysql-doublewrite": Level.WARNING}),
        ({"system_time_zone": "CST"}, {"database-time-zone": Level.NOTE}),
        ({"time_zone": "+08:00"}, {"database-time-zone": Level.NOTE}),
        ({"tx_isolation": "SERIALIZABLE"}, {"database-isolation": Level.NOTE}),
    ],
    ids=str,
)
def test_a_setting_of_mariadb_is_judged(settings: Mapping[str, str], found: Mapping[str, Level]) -> None:
    assert not_ok(of_server(changed(MARIADB, settings), needed=12)) == found


@pytest.mark.parametrize(
    ("replicas", "settings", "found"),
    [
        (0, {}, {}),
        (1, {}, {"mysql-semi-sync": Level.WARNING}),
        (None, {}, {"mysql-semi-sync": Level.NOTE}),
        (None, {"log_bin": "OFF"}, {}),
        (1, {"rpl_semi_sync_master_enabled": "ON"}, {"mysql-semi-sync": Level.WARNING}),
        (1, {"rpl_semi_sync_master_enabled": "ON", "rpl_semi_sync_master_wait_point": "AFTER_SYNC"}, {}),
    ],
    ids=str,
)
def test_replication_of_mysql_must_wait(
    replicas: int | None, settings: Mapping[str, str], found: Mapping[str, Level]
) -> None:
    assert not_ok(of_server(replace(changed(MARIADB, settings), replicas=replicas), needed=12)) == found


@pytest.mark.parametrize(
    ("nodes", "settings", "found"),
    [
        (3, {"wsrep_on": "ON"}, {"mysql-several-primaries": Level.NOTE}),
        (1, {"wsrep_on": "ON"}, {}),
        (None, {"group_replication_single_primary_mode": "OFF"}, {"mysql-several-primaries": Level.NOTE}),
        (None, {"group_replication_single_primary_mode": "ON"}, {}),
    ],
    ids=str,
)
def test_several_servers_that_take_writes_are_told(
    nodes: int | None, settings: Mapping[str, str], found: Mapping[str, Level]
) -> None:
    assert not_ok(of_server(replace(changed(MARIADB, settings), nodes=nodes), needed=12)) == found


def test_replication_of_postgresql_must_be_synchronous() -> None:
    asynchronous = replace(POSTGRESQL, replicas=1)
    assert not_ok(of_server(asynchronous, needed=12)) == {"postgresql-standby": Level.WARNING}
    assert not_ok(of_server(changed(asynchronous, {"synchronous_standby_names": "*"}), needed=12)) == {}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"journal_mode": "delete"}, {"sqlite-journal": Level.NOTE}),
        ({"journal_mode": "memory"}, {"sqlite-journal": Level.PROBLEM}),
        ({"synchronous": "1"}, {"sqlite-synchronous": Level.WARNING}),
        ({"synchronous": "3"}, {}),
    ],
    ids=str,
)
def test_a_setting_of_sqlite_is_judged(settings: Mapping[str, str], found: Mapping[str, Level]) -> None:
    assert not_ok(of_server(changed(SQLITE, settings), needed=12)) == found


@pytest.mark.parametrize(
    ("allowed", "used", "found"),
    [
        (20, 8, {}),
        (20, 9, {"database-connections": Level.WARNING}),
        (11, 0, {"database-connections": Level.PROBLEM}),
    ],
)
def test_connections_are_judged_by_what_a_process_holds(allowed: int, used: int, found: Mapping[str, Level]) -> None:
    assert not_ok(of_server(replace(POSTGRESQL, allowed=allowed, used=used), needed=12)) == found


def test_a_server_that_takes_no_writes_is_a_problem() -> None:
    assert not_ok(of_server(replace(POSTGRESQL, read_only=True), needed=12)) == {"database-writable": Level.PROBLEM}


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (ClockFacts(0.5, 0.1), {}),
        (ClockFacts(-2.1, 0.1), {"database-clock": Level.NOTE}),
        (ClockFacts(61, 0.5), {"database-clock": Level.WARNING}),
        (ClockFacts(61, 60), {}),
    ],
    ids=str,
)
def test_a_clock_is_judged_beyond_what_the_way_may_hide(facts: ClockFacts, found: Mapping[str, Level]) -> None:
    assert not_ok(of_clock(facts)) == found


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (HEAD, {}),
        (SchemaFacts(None, "0003"), {"schema-revision": Level.PROBLEM}),
        (SchemaFacts("0002", "0003"), {"schema-revision": Level.PROBLEM}),
        (replace(HEAD, differences=["index ix is missing"]), {"schema-tables": Level.PROBLEM}),
        (replace(HEAD, checks=["ck is missing"]), {"schema-checks": Level.WARNING}),
        (replace(HEAD, collations=["outbox.key: default"]), {"key-collation": Level.PROBLEM}),
    ],
    ids=str,
)
def test_a_schema_is_judged(facts: SchemaFacts, found: Mapping[str, Level]) -> None:
    assert not_ok(of_schema(facts)) == found


def test_a_revision_that_is_not_known_is_told_from_one_that_is_behind() -> None:
    behind, unknown = (
        next(iter(of_schema(it))) for it in (SchemaFacts("0002", "0003"), SchemaFacts("9", "3", known=False))
    )
    assert behind.seen == "at 0002, this version needs 0003"
    assert unknown.seen == "at 9, which this version does not know; it needs 3"
