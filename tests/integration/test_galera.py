"""What holds where two servers of a Galera cluster take writes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import pytest
import sqlalchemy as sa

from outbox import migrate
from outbox.lifecycle import State
from outbox.store.claims import Claims
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from tests.integration.rows import added
from tests.services.databases import fresh_database
from tests.services.galera import Galera, GaleraNode
from tests.services.require import require


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    """Two nodes, for this module alone."""
    with require(Galera) as cluster:
        yield cluster


@pytest.fixture
def nodes(galera: Galera) -> Iterator[tuple[Database, Database]]:
    """A fresh database at head, at each of the nodes; nobody waits long for an answer."""
    with fresh_database(galera.first.url) as url:
        at = sa.make_url(url)
        ports = (galera.first.port, galera.second.port)
        first, second = (Database(str(at.set(port=port)), answer_timeout=4) for port in ports)
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
    with standing_still(galera.second):
        # When the row is claimed at the first, for a half that may win
        (attempt,) = Claims(first).claim(1, 1 << 20, 30)
        # Then the second says nothing of it: by what it was, that half would be rolled back
        with pytest.raises(sa.exc.OperationalError):
            leases.read(row_id)
    row = leases.read(row_id)
    assert row is not None
    assert (row.state, row.token) == (State.PENDING, attempt.token)
