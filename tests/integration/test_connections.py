"""What the daemons' connections notice by themselves."""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from outbox.store.database import Database
from outbox.store.patience import LEAST, patience, wait_for_ever
from tests.crash.proxy import Proxy
from tests.services.ports import free_port
from tests.waiting import expect_soon

Result = TypeVar("Result")


def sooner_or_later(work: Callable[[], Result]) -> Result:
    """What work comes to for which these tests leave a moment: a busy machine may stand still for longer."""
    results: list[Result] = []

    def done() -> bool:
        with suppress(sa.exc.DBAPIError):
            results.append(work())
        return bool(results)

    expect_soon(done, "the server answers in time")
    return results[0]


def answer(database: Database, number: int) -> int:
    """The server's, to a question with that answer."""
    with database.look() as connection:
        return int(connection.execute(sa.text(f"SELECT {number}")).scalar_one())


@pytest.mark.skipif(sys.platform != "linux", reason="the names of the socket options are Linux's")
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_host_that_vanished_is_noticed(server: str, request: pytest.FixtureRequest) -> None:
    # Given a connection of a daemon
    database = Database(request.getfixturevalue(server))
    with database.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        number = driver.fileno() if server == "postgres" else driver._sock.fileno()
        # When its socket is asked
        with socket.socket(fileno=os.dup(number)) as own:
            idle, interval, count, unanswered = (
                own.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
            kept_alive = own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    database.close()
    # Then the system ends it within half a minute, where its own limits are hours, waiting or sending
    assert kept_alive
    assert idle + interval * count <= 30
    assert 0 < unanswered <= 30_000


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_server_that_hangs_holds_nobody_for_ever(server: str, request: pytest.FixtureRequest) -> None:
    # Given a connection to a server that takes a question, acknowledges it, and says nothing any more
    url = make_url(request.getfixturevalue(server))
    proxy = Proxy(("127.0.0.1", free_port()), (str(url.host), int(url.port or 0)))
    through = url.set(host=proxy.address[0], port=proxy.address[1]).render_as_string(hide_password=False)
    database = Database(through, answer_timeout=0.2)
    assert sooner_or_later(lambda: answer(database, 1)) == 1
    proxy.swallow_answers()
    # When it is asked; Then that ends, and the connection with it
    with pytest.raises(sa.exc.DBAPIError) as raised, database.transaction() as connection:
        connection.execute(sa.text("SELECT 2"))
    assert raised.value.connection_invalidated
    # And the next question gets the answer to itself, over another connection
    assert sooner_or_later(lambda: answer(database, 3)) == 3
    database.close()
    proxy.close()


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_an_upgrade_may_take_its_time(server: str, request: pytest.FixtureRequest) -> None:
    # Given a database whose every answer comes later than a daemon waits
    slow = "SELECT pg_sleep(0.5)" if server == "postgres" else "DO SLEEP(0.5)"
    database = Database(request.getfixturevalue(server), answer_timeout=0.2)
    # When a connection may wait for ever; Then it does
    with sooner_or_later(database.engine.connect) as connection:
        wait_for_ever(connection)
        connection.exec_driver_sql(slow)
    # And no other one
    with pytest.raises(sa.exc.DBAPIError), database.engine.connect() as connection:
        connection.exec_driver_sql(slow)
    database.close()


def test_an_answer_may_come_later_than_the_server_lets_a_statement_run() -> None:
    assert patience(1.0) == LEAST
    assert patience(60.0) > 60.0


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_daemon_that_was_stopped_within_a_transaction_gives_its_locks_back(
    server: str, request: pytest.FixtureRequest
) -> None:
    # Given a daemon in the middle of a transaction, which may be idle for a while
    url = request.getfixturevalue(server)
    database, others = Database(url, statement_timeout=0.4), Database(url)
    sessions = "pg_stat_activity WHERE pid" if server == "postgres" else "information_schema.processlist WHERE id"
    with sooner_or_later(lambda: in_a_transaction(database, server)) as stopped, others.look() as beside:
        driver: Any = stopped.connection.driver_connection
        number = driver.info.backend_pid if server == "postgres" else driver.thread_id()

        def gone() -> bool:
            return not beside.exec_driver_sql(f"SELECT 1 FROM {sessions} = {number}").all()

        # When it is stopped there; Then the server ends the session without it
        expect_soon(gone, "the session has ended", within=60)
        with pytest.raises(sa.exc.DBAPIError):
            stopped.exec_driver_sql("SELECT 1")
    database.close()
    others.close()


def in_a_transaction(database: Database, server: str) -> sa.Connection:
    connection = database.engine.connect()
    try:
        connection.exec_driver_sql("SELECT 1" if server == "postgres" else "START TRANSACTION")
    except BaseException:
        connection.close()
        raise
    return connection


def test_a_pooled_connection_is_made_anew_before_mysql_ends_it(mariadb: str) -> None:
    # Given a database whose sessions MySQL ends after a second in which they ask nothing
    database = Database(mariadb, statement_timeout=0.4)

    def session() -> int:
        with database.look() as connection:
            return int(connection.exec_driver_sql("SELECT connection_id()").scalar_one())

    first = session()
    # When time passes; Then another session comes from the pool, and nobody meets one that is over
    expect_soon(lambda: session() != first, "the pool has made another", within=60)
    database.close()
