"""What the daemons' connections notice by themselves."""

import os
import socket
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from outbox.store.database import Database
from outbox.store.patience import LEAST, patience, wait_for_ever
from tests.crash.proxy import Proxy
from tests.services.ports import free_port
from tests.waiting import expect_soon


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
    with database.look() as connection:
        connection.execute(sa.text("SELECT 1"))
    proxy.swallow_answers()
    # When it is asked; Then that ends, and the connection with it
    with pytest.raises(sa.exc.DBAPIError) as raised, database.transaction() as connection:
        connection.execute(sa.text("SELECT 2"))
    assert raised.value.connection_invalidated
    # And the next question gets the answer to itself, over another connection
    with database.look() as connection:
        assert connection.execute(sa.text("SELECT 3")).scalar_one() == 3
    database.close()
    proxy.close()


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_an_upgrade_may_take_its_time(server: str, request: pytest.FixtureRequest) -> None:
    # Given a database whose every answer comes later than a daemon waits
    slow = "SELECT pg_sleep(0.5)" if server == "postgres" else "DO SLEEP(0.5)"
    database = Database(request.getfixturevalue(server), answer_timeout=0.2)
    # When a connection may wait for ever; Then it does
    with database.engine.connect() as connection:
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
    database = Database(request.getfixturevalue(server), statement_timeout=0.4)
    begin, me = ("SELECT 1", "pg_backend_pid()") if server == "postgres" else ("START TRANSACTION", "connection_id()")
    sessions = "pg_stat_activity WHERE pid" if server == "postgres" else "information_schema.processlist WHERE id"
    with database.engine.connect() as stopped, database.look() as beside:
        number = stopped.exec_driver_sql(f"SELECT {me}").scalar_one()
        stopped.exec_driver_sql(begin)

        def gone() -> bool:
            return not beside.exec_driver_sql(f"SELECT 1 FROM {sessions} = {number}").all()

        # When it is stopped there; Then the server ends the session without it
        expect_soon(gone, "the session has ended", within=60)
        with pytest.raises(sa.exc.DBAPIError):
            stopped.exec_driver_sql("SELECT 1")
    database.close()


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
