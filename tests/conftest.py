"""The servers that tests share, and a fresh database for each test.

A server is started at its first use and serves the whole session. ``OUTBOX_TEST_POSTGRES_URL``,
``OUTBOX_TEST_MARIADB_URL``, ``OUTBOX_TEST_REDIS_URL`` (SQLAlchemy and Redis URLs of a user that may create databases),
``OUTBOX_TEST_ROCKETMQ`` (``host:port`` of a name server) and ``OUTBOX_TEST_ROCKETMQ_PROXY`` (``host:port`` of a proxy
before it, with the settings of ``tests/services/rocketmq/proxy.py``) name running servers to use instead. A server that
is not installed skips its tests on a laptop and fails them with ``CI=true``.

Tests that crash a server start one of their own: ``with require(Postgres) as server: ... server.kill()``.
"""

import os
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

from tests.services.databases import fresh_database
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.require import require, shared
from tests.unhurried import unhurried  # noqa: F401 -- a fixture

if TYPE_CHECKING:
    from tests.services.rocketmq.proxy import Proxy

BACKENDS = ("sqlite", "postgresql", "mariadb")
#: The fixture that names the server of a back end.
SERVERS = {"postgresql": "postgres", "mariadb": "mariadb"}
#: Where the tests lie that take longest, each from ten seconds to two minutes, in that order.
LONGEST = (
    "tests/crash/",
    "tests/contracts/test_versions.py",
    "tests/acceptance/",
    "tests/integration/strategies/test_crash_points.py",
    "tests/integration/test_native",
    "tests/integration/test_outage.py",
    "tests/integration/test_relay_failures.py",
    "tests/integration/test_remoting_",
    "tests/integration/test_doctor_acl.py",
    "tests/integration/test_grpc_",
    "tests/model/",
)

# How long an example took says more about the machine than about what is tested.
settings.register_profile("any-machine", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the longest tests: one that is begun last would run on alone, while other processes have ended."""
    items.sort(key=_place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs tests on MariaDB, and their fixtures, without coverage, which doubles their work.

    The same tests are measured on PostgreSQL and SQLite, and what is MariaDB's own in the product is parts of
    statements, few lines of code.
    """
    measuring = Coverage.current()
    if measuring is None or "mariadb" not in _parameters(item):
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


def _parameters(item: pytest.Item) -> Collection[object]:
    callspec = getattr(item, "callspec", None)
    return callspec.params.values() if callspec else ()


def _place(item: pytest.Item) -> int:
    return next((place for place, name in enumerate(LONGEST) if item.nodeid.startswith(name)), len(LONGEST))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL server (its maintenance database; ``fresh_database`` makes others)."""
    with shared("OUTBOX_TEST_POSTGRES_URL", Postgres) as url:
        yield url


@pytest.fixture(scope="session")
def mariadb() -> Iterator[str]:
    """SQLAlchemy URL of a MariaDB server (its system database; ``fresh_database`` makes others)."""
    with shared("OUTBOX_TEST_MARIADB_URL", MariaDB) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """URL of a Redis server; tests share it, so each uses keys with a prefix of its own."""
    with shared("OUTBOX_TEST_REDIS_URL", Redis) as url:
        yield url


@pytest.fixture(scope="session")
def rocketmq() -> Iterator[str]:
    """``host:port`` of the name server of a RocketMQ cluster; tests share it, so each uses topics of its own."""
    from tests.services.rocketmq import running_cluster  # not needed by a run that asks for no broker

    with running_cluster() as name_server:
        yield name_server


@pytest.fixture(scope="session")
def proxy_server(rocketmq: str) -> Iterator["Proxy"]:
    """A RocketMQ 5 proxy before the shared cluster; a test that restarts it leaves it running."""
    from tests.services.rocketmq.proxy import Proxy

    with require(lambda: Proxy(rocketmq)) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def rocketmq_proxy(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a proxy before the shared cluster, for gRPC clients."""
    named = os.environ.get("OUTBOX_TEST_ROCKETMQ_PROXY")
    return named or str(request.getfixturevalue("proxy_server").url)


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """SQLAlchemy URL of a fresh, empty database, on each back end in turn."""
    server = SERVERS.get(request.param)
    if server is None:
        yield f"sqlite:///{tmp_path / 'outbox.db'}"
        return
    with fresh_database(request.getfixturevalue(server)) as url:
        yield url


# Fixtures that apply the schema stand on ``database_url`` and live beside the tests that use them.
