"""What ``outbox doctor`` reads of the live schema, compared with the declared tables.

What is declared must be there as declared; what else somebody added (an index, a column, tables of the application) is
not looked at.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.engine import Connection

import outbox.consumer.schema  # noqa: F401 -- declares the consumer's tables
from outbox import revision
from outbox.columns import MYSQL_FAMILY, ExactText
from outbox.schema import metadata
from outbox.store.database import Database


@dataclass(frozen=True, slots=True)
class SchemaFacts:
    """How the live schema differs from the declared one; nothing but the revision where that is None."""

    #: None: the tables are not there.
    revision: str | None
    head: str
    #: Tables, columns, indexes that are missing or different, in words.
    differences: Sequence[str] = ()
    #: CHECK constraints that are missing or different.
    checks: Sequence[str] = ()
    #: Columns that must compare byte for byte and do not.
    collations: Sequence[str] = ()
    #: Whether this version knows the revision; one that it does not is a newer version's.
    known: bool = True


class ExaminedSchema:
    """Reads and changes nothing; raises ``sqlalchemy.exc.SQLAlchemyError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def facts(self) -> SchemaFacts:
        """Of the schema that the connection sees."""
        with self._database.engine.connect() as connection:
            at = revision.current(connection)
            if at is None:
                return SchemaFacts(None, revision.head())
            return SchemaFacts(
                at,
                revision.head(),
                [*_differences(connection), *_predicates(connection), *_invalid(connection)],
                list(_checks(connection)),
                list(_collations(connection)),
                revision.knows(at),
            )


def _differences(connection: Connection) -> Iterator[str]:
    def included(item: Any, _name: str | None, kind: str, reflected: bool, compared: Any) -> bool:
        """Leaves out what is not declared, and what is declared for other dialects."""
        if reflected:
            return compared is not None
        return kind != "index" or _is_for(connection, item)

    def named(name: str | None, kind: str, _parents: object) -> bool:
        """Leaves the application's tables unread."""
        return kind != "table" or name in metadata.tables

    options = {"compare_type": True, "include_object": included, "include_name": named}
    for found in compare_metadata(MigrationContext.configure(connection, opts=options), metadata):
        yield from _in_words(found)


def _in_words(found: Any) -> Iterator[str]:
    """One difference as Alembic tells it: what would have to be done."""
    if isinstance(found, list):
        for each in found:
            yield f"column {each[2]}.{each[3]} differs ({each[0].removeprefix('modify_')})"
        return
    what = found[0].removeprefix("add_").removeprefix("remove_")
    named = str(getattr(found[-1], "name", found[-1]))
    where = f"{found[2]}." if what == "column" else ""
    yield f"{what} {where}{named} {'is missing' if found[0].startswith('add_') else 'differs'}"


def _is_for(connection: Connection, index: sa.Index) -> bool:
    """Whether ``ddl_if`` lets this dialect have the index; SQLAlchemy tells it nowhere else."""
    condition: Any = getattr(index, "_ddl_if", None)
    return condition is None or bool(condition.callable_(dialect=connection.dialect))


def _predicates(connection: Connection) -> Iterator[str]:
    """Partial indexes whose predicate names other states."""
    option = f"{connection.dialect.name}_where"
    for table in _there(connection):
        live = {it["name"]: it.get("dialect_options", {}) for it in sa.inspect(connection).get_indexes(table.name)}
        for index in table.indexes:
            declared = index.dialect_kwargs.get(option)
            if declared is None or index.name not in live or not _is_for(connection, index):
                continue
            if _words(str(declared)) != _words(str(live[index.name].get(option, ""))):
                yield f"index {index.name} covers other rows"


def _invalid(connection: Connection) -> Iterator[str]:
    """Indexes that PostgreSQL does not use: making them failed half way."""
    if connection.dialect.name != "postgresql":
        return
    query = sa.text("""
        SELECT index.relname FROM pg_index
        JOIN pg_class AS index ON index.oid = indexrelid JOIN pg_class AS "table" ON "table".oid = indrelid
        WHERE NOT indisvalid AND "table".relnamespace = current_schema()::regnamespace AND "table".relname = ANY(:ours)
        """)
    for name in connection.execute(query, {"ours": list(metadata.tables)}).scalars():
        yield f"index {name} is not valid"


def _checks(connection: Connection) -> Iterator[str]:
    """By name, and by the values that they list."""
    preparer = connection.dialect.identifier_preparer
    for table in _there(connection):
        live = {it["name"]: it["sqltext"] for it in sa.inspect(connection).get_check_constraints(table.name)}
        declared = [it for it in table.constraints if isinstance(it, sa.CheckConstraint) and it.name]
        for constraint in sorted(declared, key=lambda it: str(it.name)):
            name = preparer.format_constraint(constraint)
            if name not in live:
                yield f"{name} is missing"
            elif _words(str(constraint.sqltext)) != _words(live[name]):
                yield f"{name} lists other values"


def _collations(connection: Connection) -> Iterator[str]:
    dialect = connection.dialect.name
    for table in _there(connection):
        exact = {column.name for column in table.columns if isinstance(column.type, ExactText)}
        read = _of_sqlite if dialect == "sqlite" else _of_columns
        for column, collation in read(connection, table.name):
            if column in exact and collation not in ("C", "POSIX", "BINARY", "varbinary"):
                yield f"{table.name}.{column}: {collation}"


def _of_columns(connection: Connection, table: str) -> list[tuple[str, str]]:
    """PostgreSQL: the collation ("default" where none is named); MySQL: the type, since binary ones have none."""
    mysql = connection.dialect.name in MYSQL_FAMILY
    said = "data_type" if mysql else "coalesce(collation_name, 'default')"
    schema = "database()" if mysql else "current_schema()"
    query = f"SELECT column_name, {said} FROM information_schema.columns WHERE table_schema = {schema}"  # noqa: S608
    rows = connection.execute(sa.text(f"{query} AND table_name = :name ORDER BY 1"), {"name": table})
    return [(str(column), str(value)) for column, value in rows]


def _of_sqlite(connection: Connection, table: str) -> list[tuple[str, str]]:
    """Of the columns that an index compares."""
    query = """SELECT DISTINCT compared.name, compared.coll FROM pragma_index_list(:name) AS indexes,
               pragma_index_xinfo(indexes.name) AS compared WHERE compared.key = 1 ORDER BY 1"""
    return [(str(column), str(value)) for column, value in connection.execute(sa.text(query), {"name": table})]


def _there(connection: Connection) -> list[sa.Table]:
    present = set(sa.inspect(connection).get_table_names())
    return [table for table in metadata.sorted_tables if table.name in present]


def _words(text: str) -> frozenset[str]:
    """The quoted values: each database writes the rest of a condition in its own way."""
    return frozenset(re.findall(r"'([^']*)'", text))
