"""What ``add`` over an async session returns: an awaitable that no commit can leave behind."""

from collections.abc import Awaitable, Callable, Generator
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from outbox.errors import NotAwaited

#: Writes the row and returns its id, once it is awaited.
Write = Callable[[], Awaitable[int]]


class PendingAdd:
    """An add whose row is written by ``await``."""

    def __init__(self, write: Write, begun: Callable[[], object]) -> None:
        self._write = write
        self._begun = begun

    def __await__(self) -> Generator[Any, Any, int]:
        """Writes the row; its id."""
        self._begun()
        return self._write().__await__()


class PendingAdds:
    """Those of all async sessions and connections. A commit before the ``await`` raises ``NotAwaited``.

    Otherwise a forgotten ``await`` would commit the business rows without their message. The end of a transaction
    forgets what belonged to it.
    """

    def __init__(self) -> None:
        #: What was to be added, numbered: nothing here keeps an awaitable or a session alive.
        self._numbers = count()
        self._of: WeakKeyDictionary[Session | Connection, dict[int, str]] = WeakKeyDictionary()

    def add(self, session: AsyncSession | AsyncConnection, what: str, write: Write) -> Awaitable[int]:
        """The awaitable for the caller; ``what`` names the message."""
        target = session.sync_session if isinstance(session, AsyncSession) else session.sync_connection
        if target is None:  # a connection that is not started says so itself
            return write()
        pending = self._of.get(target)
        if pending is None:
            pending = self._of[target] = {}
            _watch(target, pending)
        number = next(self._numbers)
        pending[number] = what
        return PendingAdd(write, lambda: pending.pop(number, None))


def _watch(target: Session | Connection, pending: dict[int, str]) -> None:
    if isinstance(target, Session):
        _watch_session(target, pending)
    else:
        _watch_connection(target, pending)


def _watch_session(session: Session, pending: dict[int, str]) -> None:
    def ended(_session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            pending.clear()

    event.listen(session, "before_commit", lambda _: _refuse(pending))
    event.listen(session, "after_transaction_end", ended)


def _watch_connection(connection: Connection, pending: dict[int, str]) -> None:
    def commits(connection: Connection) -> None:
        """Lets it commit, or rolls it back."""
        try:
            _refuse(pending)
        except NotAwaited:
            # After a commit that failed SQLAlchemy gives the connection back without a rollback of its own.
            connection.connection.rollback()
            raise

    event.listen(connection, "commit", commits)
    event.listen(connection, "rollback", lambda _: pending.clear())


def _refuse(pending: dict[int, str]) -> None:
    for what in pending.values():
        raise NotAwaited(f"{what}: add was called without await, so its row is missing: await outbox.add(...)")
