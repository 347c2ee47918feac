"""The plans of statements as the database makes them, in the very transaction in which they run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from outbox.columns import MYSQL_FAMILY
from outbox.schema import outbox
from outbox.store.database import Database

_EXPLAIN = {"postgresql": "EXPLAIN (FORMAT JSON) ", "sqlite": "EXPLAIN QUERY PLAN "}
#: Indexes of some rows only; the others hold all of them.
_PARTIAL = {index.name for index in outbox.indexes if index.dialect_kwargs.get("postgresql_where") is not None}
_STATEMENTS = ("SELECT", "WITH", "UPDATE", "DELETE")


@dataclass(slots=True)
class Plans:
    """What was planned while somebody looked."""

    #: How the outbox was read: (the statement's first words, how), where how is an index or ``whole table``.
    reads: list[tuple[str, str]] = field(default_factory=list)
    #: Statements that sort rows of the outbox before they take the first of them; not told on SQLite.
    sorts: list[str] = field(default_factory=list)
    #: Statements that compare each row of one side with each of the other; told on PostgreSQL only.
    products: list[str] = field(default_factory=list)

    def indexes(self) -> set[str]:
        """How the outbox was read."""
        return {how for _, how in self.reads}

    def whole_table(self) -> list[str]:
        """The statements that read all of it."""
        return [statement for statement, how in self.reads if how == "whole table"]


@contextmanager
def planned(database: Database) -> Iterator[Plans]:
    """Explains each statement on the outbox just before it runs."""
    plans = Plans()

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.lstrip().startswith(_STATEMENTS) or "outbox" not in statement:
            return
        cursor = connection.connection.cursor()
        prefix = _EXPLAIN.get(database.dialect, "EXPLAIN FORMAT=TRADITIONAL ")
        cursor.execute(prefix + statement, parameters)
        _read(plans, database.dialect, statement, cursor)
        cursor.close()

    event.listen(database.engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(database.engine, "before_cursor_execute", explain)


def analyze(database: Database) -> None:
    """Brings the planner's statistics up to date."""
    words = "ANALYZE TABLE outbox" if database.dialect in MYSQL_FAMILY else "ANALYZE outbox"
    with database.engine.connect() as connection:
        connection.exec_driver_sql(words).close()
        connection.commit()


def _read(plans: Plans, dialect: str, statement: str, cursor: Any) -> None:
    name = " ".join(statement.split())[:90]
    if dialect == "postgresql":
        ((found,),) = cursor.fetchall()
        _postgresql(plans, name, (json.loads(found) if isinstance(found, str) else found)[0]["Plan"], limited=False)
    elif dialect == "sqlite":
        details = [row[3] for row in cursor.fetchall()]
        plans.reads += [
            (name, _sqlite(detail, limited="LIMIT" in statement)) for detail in details if "outbox" in detail.split()
        ]
    else:
        columns = [column[0] for column in cursor.description]
        for row in (dict(zip(columns, values, strict=True)) for values in cursor.fetchall()):
            if row["table"] == "outbox":
                unbounded = ("ALL",) if "LIMIT" in statement else ("ALL", "index")
                plans.reads.append((name, "whole table" if row["type"] in unbounded else row["key"]))
                plans.sorts += [name] if "filesort" in (row["Extra"] or "") else []


def _postgresql(plans: Plans, name: str, node: Any, *, limited: bool) -> None:
    """A sort counts where it stands between the table and a LIMIT: it reads everything before the first row."""
    if node.get("Relation Name") == "outbox" and node["Node Type"] != "ModifyTable":
        index = node.get("Index Name", "")
        bounded = "Index Cond" in node or limited or index in _PARTIAL
        plans.reads.append((name, index if index and bounded else "whole table"))
    if node["Node Type"] == "Sort" and limited:
        plans.sorts.append(name)
    if node["Node Type"] == "Nested Loop" and "Join Filter" in node:
        plans.products.append(name)
    for child in node.get("Plans", ()):
        _postgresql(plans, name, child, limited=limited or node["Node Type"] == "Limit")


def _sqlite(detail: str, *, limited: bool) -> str:
    if "INDEX " in detail:
        return detail.split("INDEX ")[1].split(" ")[0].rstrip(")")
    return "PRIMARY" if detail.startswith("SEARCH") or limited else "whole table"
