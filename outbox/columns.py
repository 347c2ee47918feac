"""Column types that behave alike on PostgreSQL, MariaDB/MySQL and SQLite."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

MYSQL_FAMILY = ("mysql", "mariadb")


class ExactText(TypeDecorator[str]):
    """Text that compares byte for byte: case, blanks and Unicode forms all count; ``length`` is in UTF-8 bytes.

    MySQL's usual collations call 'A1', 'a1' and 'a1 ' equal, so there it is VARBINARY holding UTF-8. PostgreSQL gets
    the collation "C"; SQLite compares bytes by itself.
    """

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The database's own type."""
        if dialect.name in MYSQL_FAMILY:
            return dialect.type_descriptor(mysql.VARBINARY(self.length))
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(sa.String(self.length, collation=collation))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """UTF-8 bytes where the column is binary."""
        return value.encode() if value is not None and dialect.name in MYSQL_FAMILY else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002 -- the base class's
        """Text again."""
        return value.decode() if isinstance(value, bytes) else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """None where the driver gives text: a call for each value of each row is dear."""
        return super().result_processor(dialect, coltype) if dialect.name in MYSQL_FAMILY else None


class Instant(TypeDecorator[datetime]):
    """A moment in UTC with microseconds; Python sees aware datetimes only."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """timestamptz on PostgreSQL, DATETIME(6) on MySQL, ISO text on SQLite."""
        if dialect.name in MYSQL_FAMILY:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuses naive datetimes: nobody knows which hour they mean."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: pass an aware datetime")
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def ascii_name(length: int) -> TypeEngine[str]:
    """A short machine-made name (state, token, broker id): ASCII, compared exactly."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *MYSQL_FAMILY)


def row_id() -> TypeEngine[int]:
    """64-bit identity; SQLite's rowid needs the word INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def blob() -> TypeEngine[bytes]:
    """Bytes up to 4 GiB."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL_FAMILY)
