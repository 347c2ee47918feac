"""A database that restarts, fails over, refuses writes, is full or locked: the relay stays up, and says how it is.

In each case: readiness turns red and, without anybody's help, green again; every message is visible once.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from outbox import migrate
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from tests.integration.rows import added
from tests.integration.running import RunningRelay
from tests.services.databases import fresh_database
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.require import require

#: A user without the rights by which MariaDB's root writes in spite of ``read_only``.
APPLICATION = (
    "CREATE USER IF NOT EXISTS 'app'@'127.0.0.1' IDENTIFIED BY 'app'",
    "GRANT ALL ON {name}.* TO 'app'@'127.0.0.1'",
)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A server of this module's own, since it is restarted."""
    with require(Postgres) as server:
        yield server


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaDB]:
    """A server of this module's own, since it is restarted."""
    with require(MariaDB) as server:
        yield server


@contextmanager
def migrated(server_url: str, user: str = "") -> Iterator[Database]:
    """A fresh database at head, as the daemons use it."""
    with fresh_database(server_url) as url:
        database = Database(url, statement_timeout=20)
        migrate.upgrade(database)
        if user:
            for statement in APPLICATION:
                execute(server_url, statement.format(name=sa.make_url(url).database))
            database.close()
            database = Database(
                sa.make_url(url).set(username=user, password=user).render_as_string(hide_password=False),
                statement_timeout=20,
            )
        yield database
        database.close()


def execute(url: str, *statements: str) -> list[Any]:
    """Runs statements on a connection of their own; the rows of the last."""
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        results = [connection.exec_driver_sql(it) for it in statements]
        return list(results[-1].all()) if results[-1].returns_rows else []


def url_of(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Postgres | MariaDB:
    """A server that the test may restart."""
    own: Postgres | MariaDB = request.getfixturevalue(
        "own_postgres" if request.param == "postgresql" else "own_mariadb"
    )
    return own


def test_a_restart_of_the_database(server: Postgres | MariaDB) -> None:
    with migrated(server.url) as database, RunningRelay(database) as relay:
        # Given a relay at work
        added(database, 50)
        # When the server crashes while rows are shipped; Then readiness says so
        server.kill()
        relay.expect_red("database", "claims")
        assert relay.vitals.live()
        # When it is back; Then the relay goes on by itself
        server.restart()
        relay.expect_green()
        added(database, 50)
        relay.expect_all_delivered(100)


def test_connections_that_are_cut(server: Postgres | MariaDB) -> None:
    with migrated(server.url) as database, RunningRelay(database) as relay:
        # Given a relay at work, whose every connection is cut again and again, as a fail-over or a proxy does it
        for _ in range(5):
            producer = Database(url_of(database))
            added(producer, 30)
            producer.close()
            cut_all(server, database)
        # Then the rows are shipped all the same, each once
        relay.expect_all_delivered(150)
        relay.expect_green()


def cut_all(server: Postgres | MariaDB, database: Database) -> None:
    name = database.engine.url.database
    if isinstance(server, Postgres):
        execute(server.url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        return
    for number in connections(server, database):
        with suppress(sa.exc.OperationalError):  # it has gone by itself
            execute(server.url, f"KILL {number}")


def test_a_server_that_becomes_read_only(server: Postgres | MariaDB) -> None:
    user = "" if isinstance(server, Postgres) else "app"
    with migrated(server.url, user) as database, RunningRelay(database) as relay:
        (row_id, *_) = added(database, 20)
        relay.expect_all_delivered(20)
        before = connections(server, database)
        # When it takes no writes any more, as one that was demoted; Then an idle relay notices, and is not ready
        set_read_only(server, on=True)
        try:
            relay.expect_red("database")
            # And it dials anew: the name of the server may lead to another one by now
            relay.expect("it has dialled", lambda: connections(server, database) - before)
            # And its rows say nothing of a half that the broker asks about: another server may have gone on with them
            assert CommitLeases(database).read(row_id) is None
        finally:
            set_read_only(server, on=False)
        # When it takes them again; Then the relay goes on, and so does a producer, each session as soon as it is told
        relay.expect_green()
        relay.expect("rows are added", lambda: added(database, 20))
        relay.expect_all_delivered(40)


def connections(server: Postgres | MariaDB, database: Database) -> set[int]:
    """Who is connected to the database."""
    name = database.engine.url.database
    question = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
    if isinstance(server, Postgres):
        question = f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}'"
    return {number for (number,) in execute(server.url, question)}


def set_read_only(server: Postgres | MariaDB, *, on: bool) -> None:
    if isinstance(server, MariaDB):
        execute(server.url, f"SET GLOBAL read_only = {int(on)}")
        return
    setting = "SET default_transaction_read_only = on" if on else "RESET default_transaction_read_only"
    execute(server.url, f"ALTER SYSTEM {setting}", "SELECT pg_reload_conf()")


def test_locks_that_are_held_for_too_long(own_postgres: Postgres) -> None:
    with migrated(own_postgres.url) as database, RunningRelay(database) as relay:
        # Given somebody who locks the whole table for longer than the relay waits for locks
        holder = sa.create_engine(url_of(database), poolclass=sa.NullPool)
        added(database, 40)
        with holder.begin() as locking:
            locking.exec_driver_sql("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
            relay.expect_red("claims")
        # When the lock is gone; Then everything is shipped
        relay.expect_green()
        relay.expect_all_delivered(40)


@pytest.mark.parametrize("code", ["40P01", "40001"], ids=["deadlock", "serialization"])
def test_a_transaction_that_the_database_sacrifices(own_postgres: Postgres, code: str) -> None:
    with migrated(own_postgres.url) as database:
        # Given a database that sacrifices every third transaction of the relay's
        execute(
            url_of(database),
            "CREATE SEQUENCE fate",
            "CREATE FUNCTION sacrifice() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN IF mod(nextval('fate'), 3) = 0 THEN RAISE EXCEPTION USING ERRCODE = '{code}'; END IF; "
            "RETURN NULL; END$$",
            "CREATE TRIGGER sacrificed AFTER UPDATE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION sacrifice()",
        )
        # When rows are shipped; Then each is visible once
        with RunningRelay(database) as relay:
            added(database, 60)
            relay.expect_all_delivered(60)
            relay.expect_green()


def test_a_file_that_may_not_grow(sqlite_copies: Any, tmp_path: Path) -> None:
    with sqlite_copies(tmp_path) as url:
        database = Database(url)
        added(database, 200)
        with database.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()

        def limit(connection: Any, _record: object) -> None:
            """A page more than there are, which is soon used up."""
            connection.execute(f"PRAGMA max_page_count = {pages + 1}")

        # Given a disk without room for what the relay writes
        event.listen(database.engine, "connect", limit)
        database.engine.dispose()
        relay = RunningRelay(database)
        relay.starts()
        try:
            relay.expect_red("claims")
            # When there is room again; Then everything is shipped
            event.remove(database.engine, "connect", limit)
            database.engine.dispose()
            relay.expect_green()
            relay.expect_all_delivered(200)
        finally:
            relay.stops()
        database.close()


DISK_BYTES = 320 * 1024 * 1024


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small file system of its own, where the server's account gets at it."""
    if not os.environ.get("OUTBOX_TEST_LONG"):
        pytest.skip("a server of its own on a disk of its own: make conformance")
    folder = Path(tempfile.mkdtemp(prefix="outbox-disk-"))
    folder.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=1777", "outbox-tests", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def test_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a server whose disk fills up
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    with (
        require(lambda: Postgres(max_wal_size="32MB", wal_recycle="off")) as server,
        migrated(server.url) as database,
        RunningRelay(database) as relay,
    ):
        added(database, 20)
        relay.expect_all_delivered(20)
        added(database, 3_000, delay=timedelta(seconds=15))
        filler = disk / "filler"
        fill(filler)
        relay.expect_red("claims", "database")
        # When there is room again; Then the server, started again if it gave up, is used by itself
        filler.unlink()
        if not server.is_ready():
            server.restart()
        relay.expect_green()
        relay.expect_all_delivered(3_020)


def fill(filler: Path) -> None:
    """Takes all the room."""
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
