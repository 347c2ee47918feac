"""Rows that a statement is given: a whole batch in one JSON parameter, so that a statement never changes its text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import Join, Subquery

from outbox.columns import MYSQL_FAMILY
from outbox.schema import REASON_LENGTH, outbox

#: Name of the bind parameter.
PARAMETER = "given_rows"

_POSTGRESQL_TYPES = {int: "bigint", float: "double precision", str: "text"}
#: Reasons are the longest texts that rows bring.
_MYSQL_TYPES = {
    int: "BIGINT",
    float: "DOUBLE",
    str: f"VARCHAR({REASON_LENGTH}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}


def given(dialect: str, columns: Mapping[str, type]) -> Subquery:
    """The batch as a derived table with these columns (int, float or str each)."""
    build = _mysql if dialect in MYSQL_FAMILY else _sqlite if dialect == "sqlite" else _postgresql
    sql_types: dict[type, sa.types.TypeEngine[Any]] = {int: sa.BigInteger(), float: sa.Double(), str: sa.String()}
    named = [sa.column(name, sql_types[kind]) for name, kind in columns.items()]
    return sa.text(build(columns)).columns(*named).subquery("given")


class StraightJoin(Join):
    """MySQL's join in the written order: the given rows first, then each row by its primary key.

    Left to itself the optimizer may scan a small table instead, and a scan that writes locks (or waits for) rows that
    the statement never names.
    """

    inherit_cache = True


@compiles(StraightJoin)
def _straight(element: StraightJoin, compiler: SQLCompiler, **kw: Any) -> str:
    joined: str = compiler.visit_join(element, **kw)  # type: ignore[no-untyped-call]
    return joined.replace(" INNER JOIN outbox ON ", " STRAIGHT_JOIN outbox FORCE INDEX (PRIMARY) ON ", 1)


def selecting(dialect: str, rows: Subquery, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Reads the columns of the given outbox rows."""
    by_id = outbox.c.id == rows.c.id
    if dialect in MYSQL_FAMILY:
        return sa.select(*columns).select_from(StraightJoin(rows, outbox, by_id))
    return sa.select(*columns).where(by_id)


def updating(dialect: str, rows: Subquery | sa.CTE, values: Mapping[str, Any]) -> sa.Update:
    """Writes ``values`` (column names to expressions) to the given outbox rows."""
    by_id = outbox.c.id == rows.c.id
    if dialect in MYSQL_FAMILY:
        named = {outbox.c[name]: _expression(name, value) for name, value in values.items()}
        return sa.update(StraightJoin(rows, outbox, by_id)).values(named)
    return outbox.update().where(by_id).values(**values)


def _expression(column: str, value: Any) -> sa.ColumnElement[Any]:
    """SQLAlchemy names the binds of plain values by column, and a join may have two columns of one name."""
    if isinstance(value, sa.ColumnElement):
        return value
    return sa.null() if value is None else sa.literal(value, outbox.c[column].type)


def batch(rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """The bind parameter for ``given``."""
    return {PARAMETER: json.dumps(list(rows), ensure_ascii=False)}


def ids(row_ids: Iterable[int]) -> dict[str, str]:
    """The bind parameter for ``given`` where the id is all that is given."""
    return {PARAMETER: "[" + ",".join(f'{{"id":{row_id}}}' for row_id in row_ids) + "]"}


def _postgresql(columns: Mapping[str, type]) -> str:
    typed = ", ".join(f"{name} {_POSTGRESQL_TYPES[kind]}" for name, kind in columns.items())
    source = f"json_to_recordset(CAST(:{PARAMETER} AS json)) AS given_json({typed})"
    return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608 -- names come from the code


def _sqlite(columns: Mapping[str, type]) -> str:
    picked = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
    return f"SELECT {picked} FROM json_each(:{PARAMETER})"  # noqa: S608 -- names come from the code


def _mysql(columns: Mapping[str, type]) -> str:
    typed = ", ".join(f"{name} {_MYSQL_TYPES[kind]} PATH '$.{name}'" for name, kind in columns.items())
    source = f"JSON_TABLE(CAST(:{PARAMETER} AS CHAR CHARACTER SET utf8mb4), '$[*]' COLUMNS({typed})) AS given_json"
    return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608 -- names come from the code
