"""The servers that the other tests stand on: they start, crash, come back, and leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.services.databases import fresh_database
from tests.services.errors import ServiceFailed, ServiceMissing
from tests.services.mariadb import MariaDB
from tests.services.ports import free_port, is_free, ports_of
from tests.services.postgres import Postgres
from tests.services.programs import program
from tests.services.redis import Redis
from tests.services.require import require
from tests.services.server import Server
from tests.waiting import expect_soon

MAKERS: dict[str, Callable[[], Server]] = {
    "postgres": Postgres,
    "mariadb": MariaDB,
    "redis": lambda: Redis(durable=True),
}


@pytest.fixture(params=MAKERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with require(MAKERS[request.param]) as running:
        yield running


def write(server: Server) -> None:
    """One durable fact in the server."""
    if isinstance(server, Redis):
        with redis.Redis.from_url(server.url) as client:
            client.set("fact", "kept")
    else:
        _sql(server.url, "CREATE TABLE fact (word VARCHAR(9))", "INSERT INTO fact VALUES ('kept')")


def read(server: Server) -> object:
    """The fact that ``write`` left."""
    if isinstance(server, Redis):
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            return client.get("fact")
    return _sql(server.url, "SELECT word FROM fact")


def _sql(url: str, *statements: str) -> object:
    """Run the statements in one transaction; the single value of the last, if it has rows."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        return results[-1].scalar() if results[-1].returns_rows else None


def test_a_killed_server_comes_back_with_its_facts(server: Server) -> None:
    # Given a server that confirmed a write
    write(server)
    url, first = server.url, server.pid
    # When it is killed and started again on the same folder
    server.kill()
    assert not psutil.pid_exists(first)
    server.restart()
    # Then the fact is there, at the same address
    assert read(server) == "kept"
    assert server.url == url
    # When it is restarted in good order
    server.restart()
    # Then the fact is still there
    assert read(server) == "kept"


def test_stop_leaves_neither_process_nor_folder(server: Server) -> None:
    # Given a running server with all its children
    process = psutil.Process(server.pid)
    family = [process, *process.children(recursive=True)]
    folder, port = server.folder, server.port
    # When it is stopped, twice
    server.stop()
    server.stop()
    # Then nothing is left, and its port is free
    assert not any(member.is_running() for member in family)
    assert not folder.exists()
    assert is_free(port)


def test_two_servers_run_side_by_side() -> None:
    # Given two servers of one kind
    with require(Redis) as one, require(Redis) as two:
        # When one is written to
        write(one)
        # Then the other knows nothing of it
        assert read(one) == "kept"
        assert read(two) is None


# An interrupt is ignored by what a shell starts in the background, unless it asks for it.
OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.services.redis import Redis
server = Redis().start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_does_not_outlive_its_owner(death: signal.Signals) -> None:
    # Given a process that owns a server
    require(Redis)
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().decode().split()
        server = psutil.Process(int(pid))
        assert server.is_running()
        # When the owner dies without stopping it
        os.kill(owner.pid, death)
    # Then the reaper ends the server and removes its folder
    expect_soon(lambda: not server.is_running())
    expect_soon(lambda: not Path(folder).exists())


@pytest.mark.parametrize("maker", [Postgres, MariaDB])
def test_each_database_is_empty_and_gone_afterwards(maker: Callable[[], Server]) -> None:
    with require(maker) as server:
        # Given a fresh database in which a table was made
        with fresh_database(server.url) as first:
            _sql(first, "CREATE TABLE fact (word VARCHAR(9))")
            # When another one is asked for
            with fresh_database(server.url) as second:
                # Then it is another database, without that table
                _sql(second, "CREATE TABLE fact (word VARCHAR(9))")
        # And the first one is dropped
        with pytest.raises(OperationalError):
            _sql(first, "SELECT 1")


class Broken(Redis):
    """A server that ends at once, with a word in its log."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "print('no licence to run')", str(self.port)]


def test_a_server_that_cannot_start_says_what_its_log_says() -> None:
    # Given a server that ends at once / When it is started
    broken = Broken.__new__(Broken)
    Server.__init__(broken)
    with pytest.raises(ServiceFailed, match="no licence to run"):
        broken.start()
    # Then it left no folder either
    with pytest.raises(ServiceFailed, match="not started"):
        _ = broken.folder


def test_a_missing_program_names_the_remedy() -> None:
    # Given a program that is not installed / When it is looked for / Then the error says what to do
    with pytest.raises(ServiceMissing, match="no-such-server is not installed: install it"):
        program("no-such-server", remedy="install it")


def test_a_free_port_is_free_and_given_once() -> None:
    # Given ports that were asked for / When they are looked at / Then nobody listens there, and none was given twice
    given = [free_port() for _ in range(100)]
    assert all(map(is_free, given))
    assert len(set(given)) == len(given)


def test_test_processes_share_no_port() -> None:
    # Given four test processes, and the one that started them / When each has its ports
    shares = [set(ports_of(worker, 4)) for worker in range(5)]
    # Then none is another one's, with those beside it that a broker takes
    taken = [port + offset for share in shares for port in share for offset in (-2, 0, 1)]
    assert len(set(taken)) == len(taken) == 9000


def test_a_missing_server_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a server that is not installed
    def missing() -> Server:
        raise ServiceMissing("no-such-server is not installed: install it")

    # When a test requires it in CI / Then the test fails
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install it"):
        require(missing)
    # When a test requires it elsewhere / Then the test is skipped
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="install it"):
        require(missing)


def test_a_database_url_is_an_empty_database(database_url: str) -> None:
    # Given a fresh database / When its tables are listed / Then there are none
    engine = create_engine(database_url, poolclass=NullPool)
    assert inspect(engine).get_table_names() == []
