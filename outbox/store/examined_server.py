"""What ``outbox doctor`` reads of the database server: its settings, its limits, its clock."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY
from outbox.store.clock import utc_now
from outbox.store.database import Database
from outbox.store.supported import server_of

_POSTGRESQL: Final = (
    "TimeZone",
    "default_transaction_isolation",
    "fsync",
    "full_page_writes",
    "max_connections",
    "reserved_connections",
    "superuser_reserved_connections",
    "synchronous_commit",
    "synchronous_standby_names",
)
#: MariaDB's and MySQL's names; each server knows some of them.
_MYSQL: Final = (
    "group_replication_single_primary_mode",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "max_connections",
    "max_user_connections",
    "read_only",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
    "rpl_semi_sync_master_wait_point",
    "rpl_semi_sync_source_wait_point",
    "sync_binlog",
    "system_time_zone",
    "time_zone",
    "transaction_isolation",
    "tx_isolation",
    "wsrep_on",
)
_MYSQL_STATUS: Final = ("Slaves_connected", "Threads_connected", "wsrep_cluster_size")
_SQLITE: Final = ("journal_mode", "synchronous")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A database server; what it has no notion of is None."""

    #: postgresql, mysql, mariadb or sqlite.
    dialect: str
    #: By the server's own names, as a new session of this user gets them.
    settings: Mapping[str, str]
    _: KW_ONLY
    #: It takes no writes: a standby, a replica.
    read_only: bool
    #: Standbys or replicas that are connected.
    replicas: int | None = None
    #: Servers of its Galera cluster, itself included.
    nodes: int | None = None
    #: Connections that this user may open in all, and those that are open now, whoever has them.
    allowed: int | None = None
    used: int | None = None
    #: Its name and release; (): not told.
    server: tuple[str, tuple[int, ...]] = ("", ())


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """How far the database's clock is ahead of this host's, in seconds, give or take ``within``."""

    ahead: float
    within: float


class ExaminedServer:
    """Reads and changes nothing; raises ``sqlalchemy.exc.DBAPIError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def facts(self) -> ServerFacts:
        """Its settings and limits."""
        dialect = self._database.dialect
        with self._database.transaction() as connection:
            return replace(self._of(connection, dialect), server=server_of(connection))

    @staticmethod
    def _of(connection: Connection, dialect: str) -> ServerFacts:
        if dialect == "postgresql":
            return _postgresql(connection)
        if dialect in MYSQL_FAMILY:
            return _mysql(connection, dialect)
        values = {name: str(connection.exec_driver_sql(f"PRAGMA {name}").scalar()) for name in _SQLITE}
        return ServerFacts(dialect, values, read_only=False)

    def clock(self) -> ClockFacts:
        """Compared with this host's wall clock, half way between question and answer."""
        with self._database.transaction() as connection:
            connection.execute(sa.select(utc_now()))  # the next one waits for nothing but the way there and back
            asked = datetime.now(UTC)
            said = connection.execute(sa.select(utc_now())).scalar_one()
            answered = datetime.now(UTC)
        half = (answered - asked) / 2
        return ClockFacts((said - asked - half).total_seconds(), half.total_seconds())


def _postgresql(connection: Connection) -> ServerFacts:
    """``reset_val`` is what a session has before it sets anything, the settings of its user and database included."""
    named = sa.text("SELECT name, reset_val FROM pg_settings WHERE name = ANY(:names)")
    values = _by_name(connection, named, _POSTGRESQL)
    # pg_stat_activity hides from most users what kind of backend each one is.
    limits = connection.execute(
        sa.text("""
        SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication),
               (SELECT sum(numbackends) FROM pg_stat_database),
               (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
               (SELECT datconnlimit FROM pg_database WHERE datname = current_database())
        """)
    ).one()
    in_recovery, standbys, used, of_role, of_database = limits
    reserved = sum(int(values.get(f"{whose}reserved_connections", 0)) for whose in ("", "superuser_"))
    of_server = int(values["max_connections"]) - reserved
    allowed = min(limit for limit in (of_server, of_role, of_database) if limit is not None and limit >= 0)
    return ServerFacts(
        "postgresql", values, read_only=bool(in_recovery), replicas=standbys, allowed=allowed, used=int(used)
    )


def _mysql(connection: Connection, dialect: str) -> ServerFacts:
    names = sa.bindparam("names", expanding=True, type_=sa.String())
    of_server = sa.text("SHOW GLOBAL VARIABLES WHERE Variable_name IN :names").bindparams(names)
    counted = sa.text("SHOW GLOBAL STATUS WHERE Variable_name IN :names").bindparams(names)
    values, status = _by_name(connection, of_server, _MYSQL), _by_name(connection, counted, _MYSQL_STATUS)
    limits = [int(values[name]) for name in ("max_connections", "max_user_connections") if int(values.get(name, 0))]
    return ServerFacts(
        dialect,
        values,
        read_only=values.get("read_only", "OFF") not in ("OFF", "0"),
        replicas=int(status["Slaves_connected"]) if "Slaves_connected" in status else None,
        nodes=int(status.get("wsrep_cluster_size", 0)) if values.get("wsrep_on") == "ON" else None,
        allowed=min(limits),
        used=int(status["Threads_connected"]),
    )


def _by_name(connection: Connection, query: sa.TextClause, names: Sequence[str]) -> dict[str, str]:
    """Rows of two columns as a mapping."""
    return {str(name): str(value) for name, value in connection.execute(query, {"names": list(names)})}
