"""Several statements in one round trip, where psycopg drives PostgreSQL.

Its cursors spend a round trip on BEGIN alone, and its ``rollback()`` forgets all prepared statements of the connection,
the handlers' included. Here the statements travel as one simple query (PostgreSQL manual, "Message Flow"): the server
carries them out in order, and none after the first that fails, as if they had been sent one by one.
"""

from typing import Any

from psycopg import AsyncConnection, generators, pq
from psycopg.errors import error_from_result
from sqlalchemy.engine import Connection
from sqlalchemy.util.concurrency import await_only

Answer = pq.abc.PGresult

_DRIVERS = ("psycopg", "psycopg_async")


class Wire:
    """What a connection's statements travel over: psycopg's connection, synchronous or not."""

    __slots__ = ("_driver", "_encoding", "_pgconn", "memory")

    def __init__(self, connection: Connection) -> None:
        pooled: Any = connection.connection
        self._driver = pooled.driver_connection
        self._pgconn = self._driver.pgconn
        encoding = self._driver.info.encoding
        # As the driver's own: what cannot be told (SQL_ASCII) is written as UTF-8.
        self._encoding = "utf-8" if encoding == "ascii" else encoding
        #: Lives as long as the driver's connection.
        self.memory: dict[str, Any] = pooled.info

    @staticmethod
    def is_possible(connection: Connection) -> bool:
        """Whether the connection's driver is the one that this speaks to."""
        return connection.dialect.driver in _DRIVERS

    @property
    def may_prepare(self) -> bool:
        """Whether the driver has not been told to leave prepared statements alone."""
        return self._driver.prepare_threshold is not None

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return bool(self._pgconn.transaction_status == pq.TransactionStatus.IDLE)

    def sent(self, *statements: str) -> list[Answer]:
        """The answer to each statement that the server carried out; raises the driver's error for the one that failed.

        The connection is then as after any failed statement: its transaction is aborted, or it is lost.
        """
        self._pgconn.send_query(";".join(statements).encode(self._encoding))
        waiting = self._driver.wait(generators.execute(self._pgconn))
        answers: list[Answer] = await_only(waiting) if isinstance(self._driver, AsyncConnection) else waiting
        for answer in answers:
            if answer.status == pq.ExecStatus.FATAL_ERROR:
                raise error_from_result(answer, self._encoding)
        return answers

    def opening(self) -> list[str]:
        """The statement that opens the transaction as the driver would, or none where one is open already."""
        if not self.is_idle:
            return []
        driver, words = self._driver, ["BEGIN"]
        if driver.isolation_level is not None:
            words.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
        if driver.read_only is not None:
            words.append("READ ONLY" if driver.read_only else "READ WRITE")
        if driver.deferrable is not None:
            words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
        return [" ".join(words)]

    def first_row(self, answer: Answer) -> list[str]:
        """Of an answer that has rows; NULL is empty."""
        values = (answer.get_value(0, column) for column in range(answer.nfields))
        return [bytes(value or b"").decode(self._encoding) for value in values]

    def text(self, value: str) -> str:
        """The value as a literal of type text; raises ``ValueError`` for what no text of PostgreSQL, or ours, holds."""
        if "\x00" in value:
            raise ValueError(f"{value!r} contains NUL, which PostgreSQL cannot store: leave it out")
        if value.isascii() and "'" not in value and "\\" not in value:
            return f"'{value}'::text"
        try:
            exact = value.encode(self._encoding)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{value!r} cannot be written in {self._encoding}: set client_encoding to UTF8, without lone surrogates"
            ) from error
        return bytes(pq.Escaping(self._pgconn).escape_literal(exact)).decode(self._encoding)


def binary(value: bytes) -> str:
    """The value as a literal of type bytea, whatever the session's ``standard_conforming_strings``."""
    return rf"E'\\x{value.hex()}'::bytea"
