"""A database server that is killed under a running consumer, and comes back."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import migrate
from outbox.consumer import Message, Processed, Retry, Runner, RunnerSettings
from outbox.store.database import Database
from tests.integration.conftest import Copies
from tests.integration.consumer.shop import keys_done, metadata, record, shop
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.require import require
from tests.services.server import Server
from tests.unit.consumer.fakes import DEADLINE, FakeSource, delivery
from tests.waiting import expect_soon

COUNT = 60
SETTINGS = RunnerSettings(receive_wait=0.05, outage_rest=0.05, outage_rest_most=0.2)
#: Disk full, table full, a user's limit, set offline, outside its cluster or group, and a session that was ended, as
#: MySQL and MariaDB number them.
AWAY = ["1021", "1114", "1226", "3032", "1047", "3100", "3169", "1927", "4031"]
RAISE = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {}, MESSAGE_TEXT = 'injected'"


@pytest.mark.parametrize("kind", [Postgres, MariaDB])
def test_a_killed_server_costs_no_retries_and_no_effects(kind: type[Server], caplog: pytest.LogCaptureFixture) -> None:
    # Given a consumer at work, each message sent twice
    with require(kind) as server:
        url = server.url if kind is Postgres else f"{server.url.partition('?')[0].rsplit('/', 1)[0]}/test_outage"
        prepared(server, url)
        source, stop = FakeSource(), threading.Event()
        at_work, killed = threading.Event(), threading.Event()

        def step(message: Message, session: Session) -> None:
            record(message, session)
            if len(source.acknowledged) >= 10:
                at_work.set()
                assert killed.wait(DEADLINE)

        first = [delivery(keys=(f"k{number:02}",)) for number in range(COUNT)]
        source.put(*[each for one in first for each in (one, replace(one, unique_id=f"{one.unique_id}-again"))])
        inbox = shop(url, step, lock_timeout=DEADLINE)
        thread = threading.Thread(target=Runner(source, inbox, SETTINGS).run, args=(stop,))
        thread.start()
        # When the server is killed in the middle, and started again once the consumer has noticed
        assert at_work.wait(DEADLINE)
        server.kill()
        killed.set()
        expect_soon(lambda: "the store is away" in caplog.text, "noticed", within=DEADLINE)
        server.restart()
        source.expect(lambda: len(source.acknowledged) == 2 * COUNT, "everything acknowledged")
        stop.set()
        thread.join(DEADLINE)
        inbox.close()
        # Then every key took effect once, and only keys that were in progress had to come again
        database = Database(url)
        assert keys_done(database.engine) == [f"k{number:02}" for number in range(COUNT)]
        assert returned_for(caplog) <= {"another owner has its key"}
        database.close()


def prepared(server: Server, url: str) -> None:
    """Makes the database with all tables."""
    if url != server.url:
        maintenance = Database(server.url)
        with maintenance.transaction() as connection:
            connection.exec_driver_sql("CREATE DATABASE test_outage CHARACTER SET utf8mb4")
        maintenance.close()
    database = Database(url, statement_timeout=20)
    migrate.upgrade(database)
    metadata.create_all(database.engine)
    database.close()


def returned_for(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Why messages were given back."""
    return {
        record.getMessage().split(" s: ", 1)[1] for record in caplog.records if "comes again in" in record.getMessage()
    }


def test_connections_that_the_server_has_cut_cost_one_try_in_all(postgresql_copies: Copies, tmp_path: Path) -> None:
    # Given a consumer with several connections in its pool, all of which the server cuts
    with postgresql_copies(tmp_path) as url:
        outside = Database(url)
        metadata.create_all(outside.engine)
        together = threading.Barrier(4)

        def side_by_side(message: Message, session: Session) -> None:
            record(message, session)
            together.wait()

        inbox = shop(url, side_by_side)
        threads = [threading.Thread(target=inbox.process, args=(delivery(),)) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with outside.transaction() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        # When messages come / Then the first one finds out, and no other pays for a connection of its own
        together = threading.Barrier(1)
        first, second = inbox.process(delivery()), inbox.process(delivery())
        assert isinstance(first, Retry)
        assert first.outage
        assert second == Processed()
        inbox.close()
        outside.close()


def test_an_error_that_any_message_would_meet_is_an_outage(mariadb_copies: Copies, tmp_path: Path) -> None:
    # Given a database that cannot work for a while, as a statement of each handler finds out
    met: set[str] = set()

    def step(message: Message, session: Session) -> None:
        record(message, session)
        if message.key not in met:
            met.add(message.key)
            session.execute(sa.text(RAISE.format(message.key)))

    with mariadb_copies(tmp_path) as url:
        database = Database(url)
        metadata.create_all(database.engine)
        inbox, messages = shop(url, step), [delivery(keys=(code,)) for code in AWAY]
        # When messages come, twice
        first, second = ([inbox.process(message) for message in messages] for _ in range(2))
        # Then no retry is charged, nothing is kept, and the next try has its effect
        said = dict(zip(AWAY, first, strict=True))
        assert [code for code, it in said.items() if not (isinstance(it, Retry) and it.outage)] == []
        assert second == [Processed()] * len(AWAY)
        assert keys_done(database.engine) == sorted(AWAY)
        inbox.close()
        database.close()
