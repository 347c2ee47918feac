"""Watches the inbox's transaction while a handler has it, so that nothing half-done is ever acknowledged.

A handler may use savepoints, but it must not end the transaction: the inbox row would be committed without what the
handler writes afterwards. Ending it is refused before it happens where it can be seen coming, and found out before
COMMIT otherwise. The same check finds errors that the handler swallowed although they had spoiled the transaction.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox.columns import MYSQL_FAMILY
from outbox.consumer.drivers import (
    DEADLOCK,
    LOCK_TIMEOUT,
    NO_SAVEPOINT,
    OwnTransaction,
    TransactionState,
    is_outage,
    number_of,
    state_of,
)
from outbox.consumer.errors import CommittedEarly, LostMeanwhile, TransactionBroken
from outbox.consumer.failures import said

_OPTION = "outbox_guard"
_REMEDY = "leave commit, rollback and close to the inbox (begin_nested() is allowed), and raise to undo"

#: What may stand before a statement: blanks and comments, but none that MySQL executes.
_BEFORE = r"(?:\s|;|--[^\n]*\n|#[^\n]*\n|/\*(?![!M]).*?\*/)*"
_ENDS = re.compile(
    _BEFORE + r"(COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION"
    r"|ROLLBACK(?!\s+(WORK\s+|TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
#: MySQL manual, "Statements That Cause an Implicit Commit".
_ENDS_ON_MYSQL = re.compile(
    _BEFORE + r"((CREATE|DROP)(?!\s+TEMPORARY)|ALTER|TRUNCATE|RENAME|GRANT|REVOKE|LOCK\s+TABLES|UNLOCK\s+TABLES"
    r"|ANALYZE|OPTIMIZE|REPAIR|SET\s+(SESSION\s+|@@)?AUTOCOMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)
#: May commit, or be rolled back by a deadlock, and go on in a transaction that MySQL begins by itself.
_CALLS_ON_MYSQL = re.compile(_BEFORE + r"(CALL|EXECUTE)\b", re.IGNORECASE | re.DOTALL)
_MARK = "outbox_guard"


class Guard:
    """One transaction of one connection; from here on the connection's statements are watched."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect.name
        #: Asked around each statement: SQLAlchemy's way to it is long. Void once the connection is invalidated.
        self._wire = connection.connection.driver_connection
        self._transaction = connection.get_transaction()
        if isinstance(self._transaction, OwnTransaction):
            self._transaction.before_commit = self.before_commit
        self._broken: str | None = None
        self._ended_unseen = False
        self._committing = False
        self._marked = False
        self._last_error: BaseException | None = None
        # Its commit() and close() do not reach the connection; its rollback() does, and is found out.
        self.session = Session(bind=connection, join_transaction_mode="rollback_only")
        self._root = self.session.begin()
        connection.execution_options(**{_OPTION: self})

    def settle(self) -> None:
        """Writes what the session holds; raises unless the transaction is whole."""
        self.check()
        if self.session.new or self.session.dirty or self.session.deleted:
            self.session.flush()
            self.check()

    def commit(self) -> None:
        """Commits; an exception from here leaves it unknown whether the effect is durable."""
        self.check()
        self._committing = True
        self._connection.commit()
        self.session.close()

    def undo(self) -> None:
        """Makes sure that nothing is kept, whatever the handler did; raises if it is too late for that."""
        try:
            self.check_ending()
        finally:
            if self._committing or self._broken:
                # SQLAlchemy may believe that the transaction is over while the driver still has it open.
                self._connection.invalidate()
            self.session.close()
            self._connection.rollback()

    def check(self) -> None:
        """Raises unless everything since the claim is still in the one open transaction."""
        if self._broken:
            raise TransactionBroken(self._broken)
        if self.session.get_transaction() is not self._root or not self._root.is_active:
            raise TransactionBroken(f"the handler ended its session's transaction; {_REMEDY}")
        if self._connection.get_transaction() is not self._transaction:
            raise TransactionBroken(f"the handler ended the connection's transaction; {_REMEDY}")
        if self._connection.invalidated:
            raise TransactionBroken(f"the connection was given up, and its transaction with it; {_REMEDY}")
        state = state_of(self._wire, self._dialect)
        self._check_ending(state)
        if state is not TransactionState.OPEN:
            raise TransactionBroken(
                "the handler swallowed a database error that had aborted the transaction; let it rise"
            )

    def check_ending(self) -> None:
        """Raises if the inbox row may be durable already without all that belongs to it."""
        self._check_ending(None if self._connection.invalidated else state_of(self._wire, self._dialect))

    def _check_ending(self, state: TransactionState | None) -> None:
        if self._marked:
            self._look_for_mark()
        if state is TransactionState.NONE:
            self._look()
        if self._ended_unseen:
            raise CommittedEarly(
                f"the transaction was ended behind the inbox's back, what it had written may be durable; {_REMEDY}"
            )

    def saw(self, error: Exception) -> bool:
        """Whether it is this connection that raised the error."""
        return self._last_error is not None and getattr(error, "orig", None) is self._last_error

    def before_commit(self) -> None:
        """Refuses a COMMIT that is not the inbox's own."""
        if not self._committing:
            self._refuse("the handler called commit() on the connection")

    def before(self, statement: str) -> None:
        """Refuses a statement that would end the transaction, or that comes after its end and would stand alone."""
        if self._connection.get_transaction() is not self._transaction:
            self._refuse("the handler ended the transaction and went on")
        state = None if self._connection.invalidated else state_of(self._wire, self._dialect)
        self._check_ending(state)
        on_mysql = self._dialect in MYSQL_FAMILY
        if self._last_error and state is TransactionState.NONE:
            self._refuse("a database error ended the transaction, and the handler went on")
        if ends := _ENDS.match(statement) or (on_mysql and _ENDS_ON_MYSQL.match(statement)):
            self._refuse(f"the handler's statement {ends[1]} ends the transaction")
        if on_mysql and _CALLS_ON_MYSQL.match(statement):
            self._driver(f"SAVEPOINT {_MARK}")
            self._marked = True

    def _look(self) -> None:
        """Notices that the transaction ended unseen: by a procedure on MySQL, or on the driver's own connection."""
        if self._committing or self._connection.get_transaction() is not self._transaction:
            return
        if self._connection.invalidated or (self._last_error and self._dialect == "sqlite"):
            return  # ended by an error: nothing was kept
        self._ended_unseen = True

    def _look_for_mark(self) -> None:
        """Notices that a procedure ended the transaction, also if another was begun since: the savepoint is gone."""
        if self._connection.invalidated:
            return
        self._marked = False
        try:
            self._driver(f"RELEASE SAVEPOINT {_MARK}")
        except Exception as error:
            if number_of(error) != NO_SAVEPOINT:
                raise
            self._ended_unseen = self._ended_unseen or not self._broken

    def _driver(self, statement: str) -> None:
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(statement)
        finally:
            cursor.close()

    def failed(self, error: BaseException | None, *, disconnected: bool) -> None:
        """Notes an error after which the transaction is not whole, in case the handler swallows it."""
        self._last_error = error
        on_mysql = self._dialect in MYSQL_FAMILY
        if disconnected or (on_mysql and number_of(error) in (DEADLOCK, LOCK_TIMEOUT)):
            self._broken = (
                f"the handler swallowed a database error that had spoiled the transaction ({error}); let it rise"
            )

    def _refuse(self, what: str) -> None:
        self._broken = f"{what}; {_REMEDY}"
        raise TransactionBroken(self._broken)


@contextmanager
def guarded(connection: Connection) -> Iterator[Guard]:
    """A guard for a handler and for what makes its work durable; undone if anything rises.

    ``LostMeanwhile`` where the connection was lost: the handler may be the reason.
    """
    guard = Guard(connection)
    try:
        yield guard
    except Exception as error:
        undone = _undone(guard)
        if isinstance(error, LostMeanwhile) or (undone and not is_outage(error)):
            raise
        raise LostMeanwhile(said(error)) from error
    except BaseException:
        guard.undo()
        raise


def _undone(guard: Guard) -> bool:
    """False: the connection is lost, and the database undoes it by itself."""
    try:
        guard.undo()
    except DBAPIError as error:
        if not is_outage(error):
            raise
        return False
    return True


def watch(engine: Engine) -> None:
    """Lets guards see the statements of all engines that share the engine's dialect; others pass untouched."""
    for name, listener in _LISTENERS.items():
        # Not event.contains: it goes by the engine's address, which a later engine may have.
        if listener not in getattr(engine.dialect.dispatch, name):
            event.listen(engine, name, listener, insert=True)  # before one that carries the statement out itself


def _guard_of(connection: Connection | None) -> Guard | None:
    return connection.get_execution_options().get(_OPTION) if connection is not None else None


def _on_statement(_cursor: object, statement: str, *rest: Any) -> None:
    if guard := _guard_of(rest[-1].root_connection):
        guard.before(statement)


def _on_error(context: ExceptionContext) -> None:
    is_refusal = isinstance(context.original_exception, TransactionBroken | CommittedEarly)
    if not is_refusal and (guard := _guard_of(context.connection)):
        guard.failed(context.original_exception, disconnected=context.is_disconnect)


#: Events of the dialect: those of an engine have SQLAlchemy look up a dozen others around each statement.
_LISTENERS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "do_execute": _on_statement,
        "do_executemany": _on_statement,
        "do_execute_no_params": _on_statement,
        "handle_error": _on_error,
    }
)
