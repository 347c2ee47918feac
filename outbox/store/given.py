"""Rows that a statement is given: a whole batch in a few parameters, so that a statement never changes its text.

One JSON array; on PostgreSQL a text for each column, which both sides handle in a third to half of the time.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import Join, Subquery

from outbox.columns import MYSQL_FAMILY
from outbox.identity import fresh_token
from outbox.schema import REASON_LENGTH, outbox

#: Name of the bind parameter.
PARAMETER: Final = "given_rows"
#: The same on PostgreSQL: what stands between two values of a column, and the start of each column's name.
_BETWEEN: Final = "given_between"
_COLUMN: Final = "given_"
#: ASCII's own separator of units.
_UNIT: Final = "\x1f"

_POSTGRESQL_TYPES = {int: "bigint", float: "double precision"}


class AnyText(str):
    """The type of a column whose texts may hold anything, quotes and line ends too: reasons, in the words of others.

    JSON_TABLE of early releases of MariaDB 10.6 (10.6.7, not 10.6.23) leaves JSON's escapes in a text: ``\\"`` for a
    quote. So MariaDB and MySQL get these texts in hexadecimal digits. Columns of type ``str`` hold names, in which JSON
    escapes nothing.
    """

    __slots__ = ()


#: Reasons are the longest texts that rows bring.
_MYSQL_TYPES = {
    int: "BIGINT",
    float: "DOUBLE",
    str: f"VARCHAR({REASON_LENGTH}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    AnyText: f"VARCHAR({8 * REASON_LENGTH}) CHARACTER SET ascii",
}


@dataclass(frozen=True, slots=True)
class Given:
    """A batch in a statement: a derived table, and the parameters that fill it."""

    dialect: str
    #: int, float, str or AnyText each.
    columns: Mapping[str, type]
    table: Subquery

    def batch(self, rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
        """The parameters for these rows, which have a value for each column."""
        if self.dialect == "postgresql":
            listed = list(rows)
            return _texts({name: [row[name] for row in listed] for name in self.columns}, self.columns)
        if self.dialect in MYSQL_FAMILY and (texts := [it for it, kind in self.columns.items() if kind is AnyText]):
            rows = [{**row, **{name: str(row[name]).encode().hex() for name in texts}} for row in rows]
        return {PARAMETER: json.dumps(list(rows), ensure_ascii=False)}

    def ids(self, row_ids: Iterable[int]) -> dict[str, str]:
        """The parameters where the id is all that is given."""
        return self.batch([{"id": row_id} for row_id in row_ids])


def given(dialect: str, columns: Mapping[str, type]) -> Given:
    """A batch with these columns."""
    build = _mysql if dialect in MYSQL_FAMILY else _sqlite if dialect == "sqlite" else _postgresql
    sql_types: dict[type, sa.types.TypeEngine[Any]] = {int: sa.BigInteger(), float: sa.Double()}
    named = [sa.column(name, sql_types.get(kind, sa.String())) for name, kind in columns.items()]
    return Given(dialect, columns, sa.text(build(columns)).columns(*named).subquery("given"))


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


def _texts(values: Mapping[str, list[Any]], columns: Mapping[str, type]) -> dict[str, str]:
    """Each column's values in one text, between them something that none of them holds."""
    lists = [found if issubclass(columns[name], str) else list(map(repr, found)) for name, found in values.items()]
    between = _UNIT
    texts = [between.join(found) for found in lists]
    while any(text.count(between) >= max(1, len(found)) for text, found in zip(texts, lists, strict=True)):
        between = _UNIT + fresh_token()
        texts = [between.join(found) for found in lists]
    return {_BETWEEN: between, **dict(zip((_COLUMN + name for name in values), texts, strict=True))}


def _postgresql(columns: Mapping[str, type]) -> str:
    """The first column has no empty text, so it is as long as the batch; a lone empty text of another one is a list of
    none, which ``unnest`` fills up with NULL. Sub-selects keep the planner from counting: for many rows and a table
    that it takes for small it would read all of the table, and keep to that while the table grows."""
    lists = {name: f"(SELECT string_to_array(:{_COLUMN}{name}, :{_BETWEEN}))" for name in columns}
    typed = (
        found if issubclass(columns[name], str) else f"CAST({found} AS {_POSTGRESQL_TYPES[columns[name]]}[])"
        for name, found in lists.items()
    )
    picked = (f"coalesce({name}, '') AS {name}" if issubclass(kind, str) else name for name, kind in columns.items())
    source = f"unnest({', '.join(typed)}) AS given_lists ({', '.join(columns)})"
    return f"SELECT {', '.join(picked)} FROM {source}"  # noqa: S608 -- names come from the code


def _sqlite(columns: Mapping[str, type]) -> str:
    picked = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
    return f"SELECT {picked} FROM json_each(:{PARAMETER})"  # noqa: S608 -- names come from the code


def _mysql(columns: Mapping[str, type]) -> str:
    typed = ", ".join(f"{name} {_MYSQL_TYPES[kind]} PATH '$.{name}'" for name, kind in columns.items())
    source = f"JSON_TABLE(CAST(:{PARAMETER} AS CHAR CHARACTER SET utf8mb4), '$[*]' COLUMNS({typed})) AS given_json"
    picked = (f"CONVERT(UNHEX({it}) USING utf8mb4) AS {it}" if columns[it] is AnyText else it for it in columns)
    return f"SELECT {', '.join(picked)} FROM {source}"  # noqa: S608 -- names come from the code
