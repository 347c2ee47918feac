"""Large backlogs, written by the database itself in one statement, and servers to hold them."""

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox import migrate
from outbox.clock import monotonic
from outbox.columns import MYSQL_FAMILY
from outbox.lifecycle import INITIAL, Move, target_of
from outbox.message import Mode
from outbox.store.database import Database
from tests.services.databases import fresh_database
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres

#: Bytes of a payload.
PAYLOAD: Final = 512

_NUMBERS: Final = {"postgresql": "generate_series(1, {rows}) AS numbers(n)"}
_SEQUENCE: Final = "(SELECT CAST(seq AS SIGNED) AS n FROM seq_1_to_{rows}) AS numbers"
_BYTES: Final = {"postgresql": f"convert_to(repeat('x', {PAYLOAD}), 'UTF8')"}
_AT: Final = {"postgresql": "statement_timestamp() + (({at}) * interval '1 microsecond')"}
_KEY: Final = {"postgresql": '"key"'}

#: Microseconds: the backlog is due since an hour, a lease is live for a day.
_DUE: Final = "n - 3600000000"
_LIVE: Final = "n + 86400000000"


@dataclass(frozen=True, slots=True)
class Backlog:
    """So many pending rows under one name, oldest first."""

    name: str
    rows: int
    #: In so many lanes, whose heads are decided and wait for the broker; 0: in none.
    lanes: int = 0
    #: Whether a claim has met the followers before.
    parked: bool = True

    def insert(self, connection: Connection) -> None:
        """Writes them."""
        dialect = connection.dialect.name
        at = _AT.get(dialect, "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL ({at}) MICROSECOND)").format
        is_head = f"n <= {self.lanes}"
        lane = f"concat('{self.name}-', mod(n, {self.lanes}))" if self.lanes else "NULL"
        columns = {
            "topic": "'payments'",
            _KEY.get(dialect, "`key`"): f"concat('{self.name}-order-', n)",
            "payload": _BYTES.get(dialect, f"repeat('x', {PAYLOAD})"),
            "content_type": "'application/octet-stream'",
            "headers": "'{}'",
            "lane": lane,
            "open_lane": f"concat('payments/', {lane})" if self.lanes else "NULL",
            "mode": f"'{Mode.TRANSACTIONAL}'",
            "state": f"CASE WHEN {is_head} THEN '{target_of(Move.COMMIT)}' ELSE '{INITIAL}' END",
            "parked": f"NOT {is_head}" if self.lanes and self.parked else "false",
            "available_at": f"CASE WHEN {is_head} THEN {at(at=_LIVE)} ELSE {at(at=_DUE)} END",
            "created_at": at(at=_DUE),
        }
        numbers = _NUMBERS.get(dialect, _SEQUENCE).format(rows=self.rows)
        connection.exec_driver_sql(
            f"INSERT INTO outbox ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {numbers}"
        )


@contextmanager
def servers(wanted: Collection[str]) -> Iterator[dict[str, str]]:
    """URLs of durable servers by name, each with memory for its indexes."""
    postgres = Postgres(durable=True, shared_buffers="512MB", max_wal_size="4GB", autovacuum_naptime="5s")
    mariadb = MariaDB(durable=True, options=("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M"))
    with ExitStack() as stack:
        started = [stack.enter_context(it) for it in (postgres, mariadb) if it.name in wanted]
        yield {server.name: server.url for server in started}


@contextmanager
def filled(url: str, backlogs: list[Backlog]) -> Iterator[Database]:
    """A fresh database at head with these rows, the oldest first."""
    with fresh_database(url) as fresh:
        database = Database(fresh, pool_size=1, statement_timeout=900)
        migrate.upgrade(database)
        with database.transaction() as connection:
            for backlog in backlogs:
                backlog.insert(connection)
        yield database
        database.close()


def analyze(database: Database) -> None:
    """Brings the planner's statistics up to date."""
    with database.engine.connect() as connection:
        words = "ANALYZE TABLE outbox" if database.dialect in MYSQL_FAMILY else "ANALYZE outbox"
        connection.execute(sa.text(words)).close()
        connection.commit()


def flush(database: Database) -> None:
    """Lets the server write down what the fill has left in its memory: a claim is measured, not that."""
    with database.engine.connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        if database.dialect == "postgresql":
            connection.exec_driver_sql("CHECKPOINT")
            return
        before = connection.exec_driver_sql("SELECT @@GLOBAL.innodb_max_dirty_pages_pct").scalar_one()
        connection.exec_driver_sql("SET GLOBAL innodb_max_dirty_pages_pct = 0")
        dirty = sa.text("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
        until = monotonic() + 120
        while int(connection.execute(dirty).one()[1]) > 100 and monotonic() < until:
            time.sleep(0.5)
        connection.exec_driver_sql(f"SET GLOBAL innodb_max_dirty_pages_pct = {before}")
