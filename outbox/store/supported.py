"""Which releases of the databases the toolkit's statements run on."""

from typing import Final

from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY

#: The oldest release of each, by the name that people know it under. MariaDB: the first with JSON_TABLE; MySQL: with
#: CHECK; SQLite: with RETURNING; PostgreSQL: the oldest that the tests have run on.
_OLDEST: Final = {"PostgreSQL": (13,), "MariaDB": (10, 6), "MySQL": (8, 0, 16), "SQLite": (3, 35)}


def server_of(connection: Connection) -> tuple[str, tuple[int, ...]]:
    """The server's name and release; (): it is not told."""
    dialect = connection.dialect
    release = tuple(part for part in dialect.server_version_info or () if isinstance(part, int))
    if dialect.name in MYSQL_FAMILY:
        return ("MariaDB" if getattr(dialect, "is_mariadb", False) else "MySQL"), release
    return ("PostgreSQL" if dialect.name == "postgresql" else "SQLite"), release


def oldest_of(name: str) -> tuple[int, ...]:
    """The oldest release that will do."""
    return _OLDEST[name]


def dotted(release: tuple[int, ...]) -> str:
    """A release as people write it."""
    return ".".join(map(str, release))


def oldest_of_each() -> str:
    """The oldest release of each that will do, in words."""
    *others, last = (f"{name} {dotted(release)}" for name, release in _OLDEST.items())
    return f"{', '.join(others)} or {last}"
