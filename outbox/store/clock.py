"""The database's clock in SQL: the moment at which the running statement began, in UTC.

Statement time, not transaction time, so that a transaction that waited decides by a fresh clock; not wall-clock
functions (``clock_timestamp``, ``SYSDATE``) either, since those are volatile and cannot bound an index scan. A holder
reads its own monotonic clock before BEGIN, so a statement that waits for a lock only makes its lease look longer to
others than it dares to use itself.
"""

from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Float, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from outbox.columns import Instant


class utc_now(GenericFunction[datetime]):  # noqa: N801 -- SQLAlchemy's convention for functions
    """The statement's start."""

    type = Instant()
    inherit_cache = True


class utc_after(GenericFunction[datetime]):  # noqa: N801
    """The statement's start plus a number of seconds (negative: before it)."""

    type = Instant()
    inherit_cache = True

    def __init__(self, seconds: float | ColumnElement[float]) -> None:
        super().__init__(seconds if isinstance(seconds, ColumnElement) else literal(seconds, Float()))


class latest(GenericFunction[datetime]):  # noqa: N801
    """The later of two moments, neither of them NULL."""

    type = Instant()
    inherit_cache = True


class earliest(GenericFunction[datetime]):  # noqa: N801
    """The earlier of two moments, neither of them NULL."""

    type = Instant()
    inherit_cache = True


@compiles(utc_now)
def _now(_element: utc_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "UTC_TIMESTAMP(6)"


@compiles(utc_now, "postgresql")
def _now_postgresql(_element: utc_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "statement_timestamp()"


@compiles(utc_now, "sqlite")
def _now_sqlite(_element: utc_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(utc_after)
def _after(element: utc_after, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"DATE_ADD(UTC_TIMESTAMP(6), INTERVAL CAST(1000000 * ({seconds}) AS SIGNED) MICROSECOND)"


@compiles(utc_after, "postgresql")
def _after_postgresql(element: utc_after, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(utc_after, "sqlite")
def _after_sqlite(element: utc_after, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', ({seconds}) || ' seconds')"


def _picked(word: str, element: latest | earliest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{word}{compiler.process(element.clause_expr, **kw)}"


for _picks, _usual, _in_sqlite in ((latest, "GREATEST", "max"), (earliest, "LEAST", "min")):
    compiles(_picks)(partial(_picked, _usual))
    compiles(_picks, "sqlite")(partial(_picked, _in_sqlite))
