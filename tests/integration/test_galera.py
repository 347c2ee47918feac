"""What holds where two servers of a Galera cluster take writes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pymysql
import pytest
import sqlalchemy as sa

from outbox import migrate
from outbox.clock import monotonic
from outbox.doctor.database_checks import of_server
from outbox.identity import fresh_token
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.store.claims import Claims
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.examined_server import ExaminedServer
from outbox.store.heartbeats import Heartbeats
from tests.integration.rows import added
from tests.services.databases import fresh_database
from tests.services.galera import Galera, GaleraNode
from tests.services.require import require

#: Seconds; generous, the machine may be busy.
DEADLINE = 120.0


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    """Two nodes, for this module alone."""
    with require(Galera) as cluster:
        yield cluster


@pytest.fixture
def nodes(galera: Galera) -> Iterator[tuple[Database, Database]]:
    """A fresh database at head, at each of the nodes."""
    with fresh_database(galera.first.url) as url:
        at = sa.make_url(url)
        ports = (galera.first.port, galera.second.port)
        first, second = (Database(str(at.set(port=port)), lock_timeout=60, statement_timeout=60) for port in ports)
        migrate.upgrade(first)
        yield first, second
        first.close()
        second.close()


@contextmanager
def standing_still(node: GaleraNode) -> Iterator[None]:
    """As a backup makes it: the node reads, and applies nothing of what the other commits."""
    with pymysql.connect(host="127.0.0.1", port=node.port, user="root", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("SET GLOBAL wsrep_desync = ON")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        try:
            yield
        finally:
            cursor.execute("UNLOCK TABLES")
            cursor.execute("SET GLOBAL wsrep_desync = OFF")


def test_a_node_that_lags_behind_does_not_say_what_a_row_was(galera: Galera, nodes: tuple[Database, Database]) -> None:
    first, second = nodes
    # Given a row at both nodes, of which the second stands still from now on
    (row_id,) = added(first, 1)
    leases = CommitLeases(second)
    assert leases.read(row_id) is not None
    hasty = Database(str(second.engine.url), answer_timeout=4)  # or it would wait for as long as the server does
    with standing_still(galera.second):
        # When the row is claimed at the first, for a half that may win
        (attempt,) = Claims(first).claim(1, 1 << 20, 30)
        # Then the second says nothing of it: by what it was, that half would be rolled back
        with pytest.raises(sa.exc.OperationalError):
            CommitLeases(hasty).read(row_id)
    hasty.close()
    row = leases.read(row_id)
    assert row is not None
    assert (row.state, row.token) == (State.PENDING, attempt.token)


def test_claims_at_two_nodes_take_no_row_twice_and_fail_neither(nodes: tuple[Database, Database]) -> None:
    # Given rows, and relays at both nodes
    ids = added(nodes[0], 200)
    # When they claim at the same time, until nothing is left
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda database: claimed(database, deadline=DEADLINE), nodes * 2))
    # Then each row is somebody's, and what the cluster undid to that end was no error
    assert sorted(row_id for some in taken for row_id in some) == ids


def claimed(database: Database, deadline: float) -> list[int]:
    """The rows that one claimer gets while there are any."""
    claims, until, got = Claims(database), monotonic() + deadline, []
    while due(database) and monotonic() < until:
        got += [it.row_id for it in claims.claim(10, 1 << 20, 300)]
    return got


def due(database: Database) -> int:
    """How many rows nobody has leased yet."""
    with database.transaction() as connection:
        return connection.scalar(sa.select(sa.func.count()).where(outbox.c.lease_id.is_(None))) or 0


def test_heartbeats_at_two_nodes_are_all_heard(nodes: tuple[Database, Database]) -> None:
    # Given listeners at both nodes, each of which writes the one row that says that some listener is there
    together = Barrier(2, timeout=DEADLINE)

    def beat(database: Database) -> None:
        for _ in range(20):
            together.wait()
            Heartbeats(database).beat(fresh_token(), gap=30)

    # When their hearts beat at the same time; Then no beat fails
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(beat, nodes))
    assert Heartbeats(nodes[0]).watched_since(30) is not None


def test_the_doctor_sees_that_others_take_writes_as_well(nodes: tuple[Database, Database]) -> None:
    found = {it.id: it for it in of_server(ExaminedServer(nodes[0]).facts(), needed=1)}
    assert found["mysql-several-primaries"].seen == "Galera, 2 nodes"
