"""A database as the daemons use it: a small pool of their own, short time-outs, one transaction per step."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from outbox.columns import MYSQL_FAMILY
from outbox.errors import SettingsError
from outbox.store.causal import read_causally
from outbox.store.patience import PatientConnection, patience

_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}

#: libpq's words for: a host that vanished without a word (fail-over, cut cable) is noticed within half a minute. The
#: system's own limits are two hours for a connection that waits for an answer, and a quarter of one for one that sends.
_LOST_HOST = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

#: The same in the socket's words (the last in milliseconds, Linux only).
_LOST_HOST_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

#: "This server takes no writes": SQLSTATE of PostgreSQL; MySQL's option_prevents_statement, transaction and server.
_READ_ONLY = frozenset(("25006", 1290, 1792, 1836))

#: Seconds that a statement of the daemons may take.
STATEMENT_TIMEOUT: Final = 10.0

#: Connections beyond the pool's size in a rush.
_OVERFLOW = 2

#: PostgreSQL settings that a transaction turns off.
_NOT_DURABLE = ("synchronous_commit",)
_INDEX_ORDER = ("enable_seqscan", "enable_bitmapscan", "enable_sort")


class Database:
    """An engine with the toolkit's connection settings; safe to use from several threads.

    ``lock_timeout`` and ``statement_timeout`` are in seconds. A statement that runs into one of them raises
    ``sqlalchemy.exc.DBAPIError``, and its transaction is rolled back. So does one that a server which hangs does not
    answer within ``answer_timeout`` (25 s, and more than the statement may take): whether it was carried out is open.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 4,
        lock_timeout: float = 2.0,
        statement_timeout: float = STATEMENT_TIMEOUT,
        answer_timeout: float | None = None,
    ) -> None:
        self._answer_timeout = patience(statement_timeout) if answer_timeout is None else answer_timeout
        self._lock_timeout = lock_timeout
        self._statement_timeout = statement_timeout
        #: How many connections the pool opens at most, and one that listens; SQLite's has no such limit.
        self.most_connections = pool_size + _OVERFLOW + 1
        self.engine = _opened(parsed(url), pool_size, statement_timeout)
        event.listen(self.engine, "do_connect", self._connect)
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "handle_error", _leave_demoted)
        if self.dialect == "sqlite":
            event.listen(self.engine, "begin", _begin_immediate)

    @property
    def dialect(self) -> str:
        """Name of the SQL dialect: postgresql, mysql, mariadb or sqlite."""
        return self.engine.dialect.name

    @contextmanager
    def transaction(self, *, durable: bool = True, index_order: bool = False) -> Iterator[Connection]:
        """One transaction at READ COMMITTED (SQLite: BEGIN IMMEDIATE); commits at the end, rolls back on an exception.

        ``durable=False`` lets PostgreSQL answer COMMIT before the WAL reaches the disk: for claims and settlements,
        whose loss in a crash of the server leaves a state that the protocol repairs. Never for a decision.
        ``index_order=True`` makes PostgreSQL walk an index in its order up to the limit: with stale statistics it would
        rather collect and sort the whole backlog for every claim. For looks alone: before a write over named rows whose
        locks are taken in order, ``plan_freely`` has to end it, or PostgreSQL walks the whole table in that order.
        """
        local = (_NOT_DURABLE if not durable else ()) + (_INDEX_ORDER if index_order else ())
        with self.engine.begin() as connection:
            if local and self.dialect == "postgresql":
                calls = ", ".join(f"set_config('{name}', 'off', true)" for name in local)
                connection.exec_driver_sql(f"SELECT {calls}")
            yield connection

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """For statements that only read. On PostgreSQL each is a transaction of its own: one round trip, not three."""
        with self.engine.connect() as connection:
            if self.dialect == "postgresql":
                connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection

    def close(self) -> None:
        """Closes the pooled connections."""
        self.engine.dispose()

    def _connect(self, dialect: sa.Dialect, _record: object, words: Any, settings: dict[str, Any]) -> Any:
        """Waits for answers no longer than that; None: as the dialect connects by itself."""
        if dialect.name in MYSQL_FAMILY:
            for name in ("read_timeout", "write_timeout"):
                settings.setdefault(name, self._answer_timeout)
        if dialect.name != "postgresql":
            return None
        connection = PatientConnection.connect(*words, **settings)
        connection.patience = self._answer_timeout
        return connection

    def _on_connect(self, dbapi_connection: Any, _record: object) -> None:
        try:
            self._set_up(dbapi_connection)
        except BaseException:
            dbapi_connection.close()  # the pool forgets a connection that never was one
            raise

    def _set_up(self, dbapi_connection: Any) -> None:
        cursor = dbapi_connection.cursor()
        for statement in self._session_settings():
            cursor.execute(statement)
        if self.dialect in MYSQL_FAMILY:
            read_causally(cursor)
        cursor.close()
        if self.dialect != "sqlite":
            dbapi_connection.commit()
        if self.dialect in MYSQL_FAMILY:
            _notice_lost_host(dbapi_connection)

    def _session_settings(self) -> list[str]:
        lock, statement = self._lock_timeout, self._statement_timeout
        if self.dialect == "postgresql":
            return [
                f"SET lock_timeout = {int(lock * 1000)}",
                f"SET statement_timeout = {int(statement * 1000)}",
                f"SET idle_in_transaction_session_timeout = {int(statement * 3000)}",
                "SET synchronous_commit = on",
                "SET jit = off",  # compiling takes longer than any statement of ours runs
            ]
        if self.dialect in MYSQL_FAMILY:
            idle = _longest_idle(statement)
            # MySQL cannot tell idle within a transaction from idle. Each reads its own comment and skips the other's.
            own = (
                f"/*M!100301 , SESSION idle_transaction_timeout = {idle} *//*!80000 , SESSION wait_timeout = {idle} */"
            )
            return [f"SET SESSION innodb_lock_wait_timeout = {max(1, int(lock))} {own}"]
        return [
            "PRAGMA journal_mode = WAL",
            f"PRAGMA busy_timeout = {int(statement * 1000)}",
            "PRAGMA foreign_keys = ON",
        ]


def plan_freely(connection: Connection) -> None:
    """Ends the index order of a transaction."""
    if connection.dialect.name == "postgresql":
        calls = ", ".join(f"set_config('{name}', 'on', true)" for name in _INDEX_ORDER)
        connection.exec_driver_sql(f"SELECT {calls}")


def parsed(url: str) -> URL:
    """The URL with the driver that the toolkit uses filled in; ``SettingsError`` for a database it does not know."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise SettingsError(
            "database_url: not a database URL; for example postgresql://user@host/name, mysql://…, sqlite:///file.db"
        ) from error
    name = _DRIVERS.get(address.drivername, address.drivername)
    if name.split("+")[0] not in {"postgresql", "sqlite", *MYSQL_FAMILY}:
        raise SettingsError(f"database_url: {name!r} is not supported; use PostgreSQL, MariaDB/MySQL or SQLite")
    return address.set(drivername=name)


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite database; None: there is none, or its place is a URI, which SQLite alone reads."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    return Path(name)


def missing_file(url: URL) -> Path | None:
    """The SQLite file that is not there yet, and that the first connection would make."""
    path = sqlite_file(url)
    return None if path is None or path.exists() else path


def _opened(url: URL, pool_size: int, statement_timeout: float) -> Engine:
    """The engine; ``SettingsError`` where its driver is missing or not a synchronous one."""
    try:
        engine = _engine(url, pool_size, statement_timeout)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        choice = "" if url.drivername in _DRIVERS.values() else "leave the driver out and "
        extra = "[mysql]" if url.get_backend_name() in MYSQL_FAMILY else ""
        raise SettingsError(
            f"database_url: the driver of {url.drivername!r} is missing ({error}): {choice}"
            f"pip install 'rocketmq-outbox{extra}'"
        ) from error
    if engine.dialect.is_async:
        raise SettingsError(f"database_url: {url.drivername!r} is an asynchronous driver: leave the driver out")
    if url.get_backend_name() in MYSQL_FAMILY:
        _check_options(engine)
    return engine


def _check_options(engine: Engine) -> None:
    """What drivers of MySQL make of a wrong option is no database error, and comes with the first connection only."""
    words, options = engine.dialect.create_connect_args(engine.url)
    try:
        signature(engine.dialect.loaded_dbapi.connect).bind(*words, **options)
    except TypeError as error:
        raise SettingsError(f"database_url: {error}: correct that option behind the '?', or leave it out") from error
    charset = str(options.get("charset", "utf8mb4"))
    if not charset.startswith("utf8"):
        raise SettingsError(f"database_url: charset={charset}: write utf8mb4, or leave it out: texts are Unicode")


def _longest_idle(statement_timeout: float) -> int:
    """Seconds after which MariaDB or MySQL ends a session that holds locks and asks nothing: its process stopped."""
    return max(1, int(3 * statement_timeout))


def _engine(url: URL, pool_size: int, statement_timeout: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        # isolation_level None: the driver issues no BEGIN of its own, so that ours is the only one.
        return sa.create_engine(url, connect_args={"isolation_level": None, "timeout": 30})
    return sa.create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=pool_size,
        max_overflow=_OVERFLOW,
        pool_pre_ping=False,
        # MySQL ends what lies idle in the pool as well: nothing lies there for so long.
        pool_recycle=_longest_idle(statement_timeout) * 2 / 3 if url.get_backend_name() in MYSQL_FAMILY else 1800,
        connect_args={"connect_timeout": 5, **(_LOST_HOST if url.get_backend_name() == "postgresql" else {})},
    )


def _begin_immediate(connection: Connection) -> None:
    """A deferred BEGIN that read first could not be upgraded once somebody else wrote (SQLITE_BUSY_SNAPSHOT)."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _notice_lost_host(dbapi_connection: Any) -> None:
    """PyMySQL keeps connections alive at the system's pace, which is hours, and has no setting for another."""
    socket_of = getattr(dbapi_connection, "_sock", None)
    for name, value in _LOST_HOST_OPTIONS.items():
        option = getattr(socket, name, None)
        if option is not None and socket_of is not None and socket_of.family != getattr(socket, "AF_UNIX", None):
            socket_of.setsockopt(socket.IPPROTO_TCP, option, value)


def _leave_demoted(context: ExceptionContext) -> None:
    """A server that was demoted keeps its connections, while its name may lead to another one: they are made anew."""
    if takes_no_writes(context.original_exception):
        context.is_disconnect = True


def takes_no_writes(error: BaseException) -> bool:
    """Whether a driver's error says that the server is read-only, or that the session is."""
    code = getattr(error, "sqlstate", None) or next(iter(getattr(error, "args", ())), None)
    return code in _READ_ONLY
