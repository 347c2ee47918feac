"""What the drivers know without asking the server: whether a transaction is open, and what an error did to it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox.columns import MYSQL_FAMILY
from outbox.errors import NoTransaction
from outbox.store.database import takes_no_writes

#: MySQL protocol: SERVER_STATUS_IN_TRANS.
_MYSQL_IN_TRANS = 1
#: ER_DUP_ENTRY
DUPLICATE_ENTRY = 1062
#: ER_LOCK_WAIT_TIMEOUT (undoes the statement only), ER_LOCK_DEADLOCK (undoes everything), ER_LOCK_NOWAIT.
LOCK_TIMEOUT, DEADLOCK, LOCK_NOWAIT = 1205, 1213, 3572
#: ER_SP_DOES_NOT_EXIST, also of savepoints.
NO_SAVEPOINT = 1305

#: PEP 249's names.
_DRIVER_ERRORS = {"DatabaseError", "InterfaceError"}
_PG_OUTAGE = ("08", "57P", "53")
#: Line by line: no connection to be had; the session was ended, or the server ends; no room, no memory; the server is
#: there, but set offline, outside its Galera cluster, or out of its replication group.
_MYSQL_OUTAGE = frozenset(
    (
        *(1040, 1129, 1203, 1226, 2002, 2003),
        *(1053, 1927, 2006, 2013, 2055, 3168, 3169, 4031),
        *(1021, 1037, 1041, 1114),
        *(3032, 1047, 3100),
    )
)
_SQLITE_OUTAGE = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM}
)


class TransactionState(Enum):
    """How the driver sees the connection."""

    OPEN = "open"
    #: An error aborted it: PostgreSQL answers COMMIT with a silent rollback.
    ABORTED = "aborted"
    NONE = "none"


#: libpq's PQTRANS_IDLE and PQTRANS_INERROR.
_PG_STATES = {0: TransactionState.NONE, 3: TransactionState.ABORTED}


class OwnTransaction(RootTransaction):
    """A transaction that asks before it commits, whoever has it commit, once it has been told whom to ask.

    SQLAlchemy's own event would do; but an engine with such events looks up a dozen of them around each statement.
    """

    __slots__ = ("before_commit",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.before_commit: Callable[[], None] | None = None

    def commit(self) -> None:
        """Asks, then commits."""
        if self.before_commit:
            self.before_commit()
        super().commit()


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """A connection with a transaction that can write; rolled back at the end unless it was committed.

    On SQLite the write lock is taken at once: a transaction that read first could not be upgraded any more once
    somebody else wrote (SQLITE_BUSY_SNAPSHOT).
    """
    with engine.connect() as connection:
        OwnTransaction(connection)
        if connection.dialect.name == "sqlite":
            if transaction_state(connection) is TransactionState.NONE:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
        elif commits_by_itself(connection.connection.driver_connection):
            raise NoTransaction("engine: it is in autocommit, so effect and inbox row could not be one; use another")
        try:
            yield connection
        except Exception as error:
            if _is_demoted(error) or _is_demoted(error.__cause__):
                connection.invalidate()  # the server keeps it, while its name may lead to another one
            raise


def begin_anew(connection: Connection) -> None:
    """Another transaction, as the engine's listeners have each begin, after the driver's was ended past SQLAlchemy."""
    if ended := connection.get_transaction():
        ended.rollback()
    OwnTransaction(connection)


@contextmanager
def opened(engine: Engine, lock_timeout: float) -> Iterator[Connection]:
    """As ``begun``, and the driver knows already that a transaction is open, before anything was written in it.

    ``lock_timeout`` (seconds) holds for this transaction on PostgreSQL.
    """
    with begun(engine) as connection:
        limit_lock_waits(connection, lock_timeout)
        if connection.dialect.name in MYSQL_FAMILY:
            # Answers to reads do not tell the driver that a transaction is open.
            connection.exec_driver_sql("START TRANSACTION")
        yield connection


def limit_lock_waits(connection: Connection, lock_timeout: float) -> None:
    """Sets the longest wait for a lock, in seconds, for the rest of the transaction; on PostgreSQL alone."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(lock_limit(lock_timeout))


def lock_limit(lock_timeout: float) -> str:
    """The statement that does so."""
    return f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}"


def commits_by_itself(driver: Any) -> bool:
    """Whether a driver's connection is in autocommit."""
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    return bool(driver.autocommit)  # PostgreSQL's drivers, and MySQL's own


def transaction_state(connection: Connection) -> TransactionState:
    """The state as of the server's last answer."""
    return state_of(connection.connection.driver_connection, connection.dialect.name)


def state_of(driver: Any, dialect: str) -> TransactionState:
    """The same for a driver's connection."""
    if dialect == "postgresql":
        # psycopg makes its ``info`` anew each time; psycopg2 has nothing else.
        status = driver.pgconn.transaction_status if hasattr(driver, "pgconn") else driver.info.transaction_status
        return _PG_STATES.get(status, TransactionState.OPEN)
    if dialect == "sqlite":
        return TransactionState.OPEN if driver.in_transaction else TransactionState.NONE
    # MySQL's own driver keeps the server's words to itself, and mysqlclient throws them away.
    status = getattr(driver, "server_status", _MYSQL_IN_TRANS)
    is_open = getattr(driver, "in_transaction", status & _MYSQL_IN_TRANS)
    return TransactionState.OPEN if is_open else TransactionState.NONE


def number_of(error: BaseException | None) -> int | None:
    """MySQL's number of a driver's error."""
    first = error.args[0] if error is not None and error.args else None
    return first if isinstance(first, int) else None


def is_outage(error: BaseException) -> bool:
    """Whether a database could not be reached or cannot write, so that any other message would fare the same.

    SQLAlchemy's errors and the drivers' own: what fails while a new connection is set up reaches us unwrapped.
    """
    if isinstance(error, PoolTimeout) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return True
    cause: Any = _of_driver(error)
    if cause is None:
        return False
    if takes_no_writes(cause):
        return True
    if isinstance(cause, sqlite3.Error):
        return (getattr(cause, "sqlite_errorcode", 0) & 0xFF) in _SQLITE_OUTAGE
    if hasattr(cause, "sqlstate"):
        # A connection that was never made has no SQLSTATE.
        return cause.sqlstate.startswith(_PG_OUTAGE) if cause.sqlstate else _is_operational(cause)
    return number_of(cause) in _MYSQL_OUTAGE


def _of_driver(error: BaseException | None) -> BaseException | None:
    """The driver's own error, if it is one."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    names = {parent.__name__ for parent in type(cause).__mro__}
    return cause if _DRIVER_ERRORS & names else None


def _is_demoted(error: BaseException | None) -> bool:
    cause = _of_driver(error)
    return cause is not None and takes_no_writes(cause)


def _is_operational(cause: BaseException) -> bool:
    return type(cause).__name__ in {"OperationalError", "InterfaceError"}
