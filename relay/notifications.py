"""LISTEN on a connection of its own, which notices when nothing reaches it any more.

A notification is lost without a word where a pooler lends the server's connection to somebody else after each
transaction, where a fail-over or a firewall left half a connection, and where a standby is asked. So the listener
notifies itself, over another connection: what does not come back means that nothing comes. Where it has never come, the
relay polls from then on and says so once; where it used to, the connection is made anew.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from outbox.identity import fresh_token
from outbox.shown import cause
from outbox.store.database import Database
from outbox.store.notifications import CHANNEL, SLEEP_LOCK, VACANT
from outbox.store.patience import PatientConnection
from relay.timing import Pause

_LOG = logging.getLogger("relay")

#: Seconds between two heartbeats, and for one to come back.
_EVERY: Final = 10.0
_PATIENCE: Final = 10.0
#: Seconds for the server's answer to a question over the listening connection: the loop claims nothing meanwhile.
_ANSWER: Final = 2.0
#: Seconds between tries to connect.
_RETRY_FIRST, _RETRY_MOST = 1.0, 30.0
#: Seconds between tries to get the lock of the one that sleeps.
_ASK_FIRST, _ASK_MOST = 0.05, 10.0
#: Seconds between tries to connect where no heartbeat has ever come back.
_RETRY_DEAF: Final = 600.0


class Notifications:
    """For the thread of one loop. Never raises: without notifications the loop polls."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], float],
        *,
        every: float = _EVERY,
        patience: float = _PATIENCE,
        log: logging.Logger = _LOG,
    ) -> None:
        self._database = database
        self._now = now
        self._every = every
        self._log = log
        self._patience = patience
        self._retry = Pause(_RETRY_FIRST, _RETRY_MOST)
        self._asking = Pause(_ASK_FIRST, _ASK_MOST)
        self._ask_again = now()
        self._connection: PatientConnection | None = None
        self._beat = fresh_token()
        #: When the next heartbeat, or the next try to connect, is due.
        self._next = now()
        #: When the heartbeat under way was sent.
        self._sent: float | None = None
        #: Whether a heartbeat came back over this connection, and over any.
        self._hears = False
        self._ever = False
        self._rows = False
        #: Whether the log says that nothing arrives.
        self._told = False
        #: Whether writers tell this relay of every row that they add.
        self.dozing = False

    def fileno(self) -> int | None:
        """What to wait for; None: there is no connection."""
        return None if self._connection is None else self._connection.fileno()

    def tend(self) -> float:
        """Connects, sends heartbeats and misses them; the seconds until it must be called again."""
        self._read()
        now = self._now()
        if self._sent is not None and now >= self._sent + self._patience:
            self._missed()
        elif self._sent is None and now >= self._next:
            self._send() if self._connection is not None else self._open()
        return max(0.0, (self._next if self._sent is None else self._sent + self._patience) - now)

    def heard(self) -> bool:
        """Whether rows were announced since the last call."""
        self._read()
        rows, self._rows = self._rows, False
        return rows

    def doze(self, *, at_once: bool = False) -> bool:
        """Takes the lock that makes writers notify; whether it was taken just now, so that the rows must be looked at.

        Nobody gets it while a writer is under way that will not notify, or while another relay has it, which then takes
        the rows; so it is asked for ever more rarely. ``at_once``: rows come, so it is asked for all the same.
        """
        if self.dozing or not self._hears or not (at_once or self._now() >= self._ask_again):
            return False
        self.dozing = self._ask(f"SELECT pg_try_advisory_lock({SLEEP_LOCK})")
        if self.dozing:
            self._asking.reset()
        elif not at_once:
            self._ask_again = self._now() + self._asking.grow()
        return self.dozing

    def rise(self) -> None:
        """Gives the lock back."""
        if self.dozing:
            self.dozing = False
            self._ask(f"SELECT pg_advisory_unlock({SLEEP_LOCK})")

    def leave(self) -> None:
        """Gives the lock back, and has the other relays look at once and ask for it."""
        if self._hears:
            given_back = f"pg_advisory_unlock({SLEEP_LOCK})" if self.dozing else "true"
            self.dozing = False
            self._ask(f"SELECT {given_back}, pg_notify('{CHANNEL}', '{VACANT}')")

    def close(self) -> None:
        """Closes the connection, and with it ends LISTEN and gives the lock back."""
        connection, self._connection = self._connection, None
        self._hears = self.dozing = False
        self._sent = None
        if connection is not None:
            connection.close()

    def _open(self) -> None:
        try:
            self._connection = self._listening()
        except (SQLAlchemyError, psycopg.Error) as error:
            self._broken(cause(error))
            return
        self._send()

    def _listening(self) -> PatientConnection:
        """A connection that is no longer the pool's."""
        pooled = self._database.engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        try:
            connection.autocommit = True
            connection.patience = _ANSWER
            connection.add_notify_handler(lambda notification: self._note(notification.payload))
            connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error:
            connection.close()  # a standby refuses LISTEN, and nobody else knows of this connection
            raise
        return connection  # type: ignore[no-any-return]

    def _send(self) -> None:
        """Over another connection, as a writer would."""
        self._beat = fresh_token()
        try:
            with self._database.look() as connection:
                connection.execute(sa.select(sa.func.pg_notify(CHANNEL, self._beat).is_(None)))
        except SQLAlchemyError as error:
            self._broken(cause(error))
            return
        self._sent = self._now()

    def _read(self) -> None:
        """Takes in what has arrived, without waiting; what arrives beside the answer to a query has a handler."""
        if self._connection is None:
            return
        try:
            self._connection.pgconn.consume_input()
            while (notification := self._connection.pgconn.notifies()) is not None:
                self._note(notification.extra.decode())
        except psycopg.Error as error:
            self._broken(cause(error))

    def _note(self, payload: str) -> None:
        if not payload:
            self._rows = True
        elif payload == VACANT:
            self._rows, self._ask_again = True, self._now()
        elif payload == self._beat:
            self._rows = self._rows or not self._hears  # ends the rest, so that the next one is a sleep
            self._hears = self._ever = True
            self._sent, self._next = None, self._now() + self._every
            self._retry.reset()

    def _missed(self) -> None:
        """The heartbeat did not come back."""
        if self._ever:
            self._broken("no notification arrives any more")
            return
        if not self._told:
            self._log.warning(
                "notifications do not arrive, as behind a pooler that lends connections by transaction: polling"
            )
        self._told = True
        self._unlisten()
        self.close()
        self._next = self._now() + _RETRY_DEAF

    def _unlisten(self) -> None:
        """A pooler lends the connection to others, who must not get what they did not ask for."""
        if self._connection is not None:
            try:
                self._connection.execute("UNLISTEN *")
            except psycopg.Error as error:
                self._log.info("notifications: %s", cause(error))

    def _broken(self, why: str) -> None:
        self.close()
        pause = self._retry.grow()
        self._next = self._now() + pause
        self._rows = True  # what was told meanwhile is lost: look
        self._log.info("notifications: %s; polling, connecting again in %.0f s", why, pause)

    def _ask(self, query: str) -> bool:
        if self._connection is None:
            return False
        try:
            row = self._connection.execute(query.encode()).fetchone()
        except psycopg.Error as error:
            self._broken(cause(error))
            return False
        return row is not None and bool(row[0])
