"""What the daemons' connections notice by themselves."""

import os
import socket
import sys
from typing import Any

import pytest

from outbox.store.database import Database


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
