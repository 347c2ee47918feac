"""Several statements in one round trip, where psycopg drives PostgreSQL.

Its cursors spend a round trip on BEGIN alone, and its ``rollback()`` forgets all prepared statements of the connection,
the handlers' included. Here the statements travel as one simple query (PostgreSQL manual, "Message Flow"): the server
carries them out in order, and none after the first that fails, as if they had been sent one by one. Nothing is
prepared, so that a pooler between here and there changes nothing.
"""

import inspect
from typing import Any

from psycopg import generators, pq
from psycopg.errors import error_from_result
from sqlalchemy.engine import Connection
from sqlalchemy.util.concurrency import await_only

_DRIVERS = ("psycopg", "psycopg_async")


def is_possible(connection: Connection) -> bool:
    """Whether the connection's driver is the one that this speaks to."""
    return connection.dialect.driver in _DRIVERS


def sent(connection: Connection, *statements: str) -> list[pq.abc.PGresult]:
    """The answer to each statement that the server carried out; raises the driver's error for the one that failed.

    The connection is then as after any failed statement: its transaction is aborted, or it is lost.
    """
    driver = _driver(connection)
    driver.pgconn.send_query(";".join(statements).encode(_encoding(driver)))
    waiting = driver.wait(generators.execute(driver.pgconn))
    answers: list[pq.abc.PGresult] = await_only(waiting) if inspect.isawaitable(waiting) else waiting
    for answer in answers:
        if answer.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(answer, _encoding(driver))
    return answers


def opening(connection: Connection) -> list[str]:
    """The statement that opens the transaction as the driver would, or none where one is open already."""
    driver = _driver(connection)
    if driver.pgconn.transaction_status != pq.TransactionStatus.IDLE:
        return []
    words = ["BEGIN"]
    if driver.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    return [" ".join(words)]


def text(connection: Connection, value: str) -> str:
    """The value as a literal of type text; raises ``ValueError`` for NUL, which no text of PostgreSQL holds."""
    if "\x00" in value:
        raise ValueError(f"{value!r} contains NUL, which PostgreSQL cannot store: leave it out")
    driver = _driver(connection)
    encoding = _encoding(driver)
    return bytes(pq.Escaping(driver.pgconn).escape_literal(value.encode(encoding))).decode(encoding) + "::text"


def binary(value: bytes) -> str:
    """The value as an expression of type bytea, whatever the session's ``standard_conforming_strings``."""
    return f"decode('{value.hex()}', 'hex')"


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _encoding(driver: Any) -> str:
    """As the driver's own: what cannot be told (SQL_ASCII) is written as UTF-8."""
    encoding: str = driver.info.encoding
    return "utf-8" if encoding == "ascii" else encoding
