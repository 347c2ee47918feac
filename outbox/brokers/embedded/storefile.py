"""The file itself: one connection per holder, safe across threads, forks, processes and a file that was replaced."""

import logging
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outbox.brokers.embedded import schema
from outbox.brokers.embedded.timing import BrokerTiming, Clock
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: What SQLite raises for statements and values that are wrong: our mistake, no outage.
_MISTAKES = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError)


class Unavailable(RuntimeError):
    """The file cannot be opened, read or locked in time; nothing was written."""


class CommitUnknown(Unavailable):
    """The file's COMMIT failed half way: perhaps it was written."""


class StoreFile:
    """Short transactions on the broker's file. A new connection is made after a fork, and when the file was replaced.

    ``synchronous = NORMAL``: a killed process loses nothing that was acknowledged, as with RocketMQ's ASYNC_FLUSH;
    a power cut can.
    """

    def __init__(self, path: str | os.PathLike[str], timing: BrokerTiming, clock: Clock) -> None:
        self.path = Path(path).absolute()
        self.timing = timing
        self.clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        #: Connections of the parent: closing them in a child would disturb the parent's locks.
        self._inherited: list[sqlite3.Connection] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forgetting(self))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file; raises ``Unavailable``."""
        with self._transaction("BEGIN", monotonic() + self.timing.busy_timeout, math.inf) as connection:
            yield connection

    @contextmanager
    def writing(self, until: float) -> Iterator[sqlite3.Connection]:
        """One transaction, committed before ``until`` (``outbox.clock.monotonic`` seconds) or not at all.

        Raises ``Unavailable`` (nothing was written) or ``CommitUnknown``.
        """
        if monotonic() >= until:
            raise Unavailable(f"{self.path}: the time limit had passed before anything was written")
        with self._transaction("BEGIN IMMEDIATE", until, until) as connection:
            yield connection

    def close(self) -> None:
        """Frees the connection; a later use opens a new one."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _transaction(self, begin: str, until: float, complete_by: float) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=max(0.0, until - monotonic())):
            raise Unavailable(f"{self.path}: still in use by another thread at the time limit")
        try:
            connection = self._begin(begin, until)
            try:
                yield connection
                self._commit(connection, complete_by)
            except BaseException:
                self._roll_back(connection)
                raise
        except _MISTAKES:
            raise
        except sqlite3.Error as error:
            raise Unavailable(f"{self.path}: {error}") from error
        finally:
            self._lock.release()

    def _begin(self, begin: str, until: float) -> sqlite3.Connection:
        connection = self._connected()
        milliseconds = max(0, int((until - monotonic()) * 1000))
        connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
        connection.execute(begin)
        return connection

    def _commit(self, connection: sqlite3.Connection, until: float) -> None:
        if monotonic() >= until:
            raise Unavailable(f"{self.path}: the time limit passed before the transaction was complete")
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                raise
            raise CommitUnknown(f"{self.path}: {error}") from error

    @staticmethod
    def _roll_back(connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode != self._inode_of_path():
            log.warning("%s was replaced: opening it anew", self.path)
            self._disconnect()
        if self._connection is None:
            self._connection = self._connect()
            self._inode = self._inode_of_path()
        return self._connection

    def _inode_of_path(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self.timing.busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._use_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            schema.ensure(connection, self.clock())
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switches to WAL; SQLite does not wait when two processes switch a new file at once, so this does."""
        end = monotonic() + self.timing.busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if monotonic() > end:
                    raise
                time.sleep(0.005)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def forget_parent(self) -> None:
        """In a forked child: leaves the parent's connection and lock alone and starts afresh."""
        self._lock = threading.Lock()
        if self._connection is not None:
            self._inherited.append(self._connection)
            self._connection = None


class _forgetting:  # noqa: N801 -- a function with a weak memory: a fork hook must not keep the file alive
    def __init__(self, file: StoreFile) -> None:
        self._file = weakref.ref(file)

    def __call__(self) -> None:
        file = self._file()
        if file is not None:
            file.forget_parent()
