"""What a database says its schema is, in its own words, so that two databases can be compared."""

import re
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.revision import VERSION_TABLE

_POSTGRESQL = (
    """
    SELECT 'column', attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
           collname, pg_get_expr(adbin, adrelid)
    FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid AND relkind = 'r' AND relnamespace = 'public'::regnamespace
    LEFT JOIN pg_collation ON pg_collation.oid = attcollation
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0
    """,
    """
    SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    """,
    """
    SELECT 'storage', oid::regclass::text, option FROM pg_class, unnest(reloptions) AS option
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    """,
    "SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
)


def catalog(connection: Connection) -> list[str]:
    """Everything about the tables but the version table: columns, types, collations, constraints, indexes."""
    describe: dict[str, Callable[[Connection], list[str]]] = {
        "postgresql": _postgresql,
        "sqlite": _sqlite,
        "mysql": _mysql,
        "mariadb": _mysql,
    }
    return sorted(line for line in describe[connection.dialect.name](connection) if VERSION_TABLE not in line)


def _postgresql(connection: Connection) -> list[str]:
    return [str(tuple(row)) for query in _POSTGRESQL for row in connection.execute(sa.text(query))]


def _sqlite(connection: Connection) -> list[str]:
    rows = connection.execute(
        sa.text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'")
    )
    return [re.sub(r"\s+", " ", sql).replace("( ", "(").replace(" )", ")") for (sql,) in rows]


def _mysql(connection: Connection) -> list[str]:
    tables = connection.execute(sa.text("SHOW TABLES")).scalars().all()
    created = [connection.execute(sa.text(f"SHOW CREATE TABLE {table}")).one()[1] for table in tables]
    return [_keys_sorted(re.sub(r" AUTO_INCREMENT=\d+", "", sql)) for sql in created]


def _keys_sorted(sql: str) -> str:
    """SQLAlchemy keeps a table's indexes in a set, so the order in which it makes them says nothing."""
    keys = sorted(re.findall(r"^  KEY .*?(?=,?$)", sql, flags=re.MULTILINE))
    return re.sub(r"^  KEY .*?(?=,?$)", lambda _: keys.pop(0), sql, flags=re.MULTILINE)
