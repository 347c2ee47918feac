"""Where MySQL and MariaDB part ways, on whichever of them the tests have."""

import re
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from outbox import migrate, revision
from outbox.errors import SettingsError
from outbox.store.database import Database
from outbox.store.exclusive import exclusive
from tests.services.databases import fresh_database

#: Functions that MySQL 9.7 has only where a component is installed.
_GONE = re.compile(r"\b(sha1?|md5)\s*\(", re.IGNORECASE)


def test_locks_have_names_that_every_version_can_make(mariadb: str) -> None:
    # Given somebody who sees each statement
    seen: list[str] = []

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    with fresh_database(mariadb) as url:
        database = Database(url)
        event.listen(database.engine, "before_cursor_execute", look)
        # When locks are taken that are named after the database
        migrate.upgrade(database)
        with database.transaction() as connection, exclusive(connection, "retention") as alone:
            assert alone
        database.close()
    # Then no name needs a function that is gone
    assert sum("get_lock" in statement for statement in seen) == 2
    assert [statement for statement in seen if _GONE.search(statement)] == []


def test_a_database_of_bytes_knows_its_revision(mariadb: str) -> None:
    # Given a database whose default character set is binary
    with fresh_database(mariadb) as url:
        database = Database(url)
        with database.transaction() as connection:
            connection.exec_driver_sql("ALTER DATABASE CHARACTER SET binary")
        database.engine.dispose()  # a connection keeps the default with which it came to the database
        # When it is upgraded, and once more / Then it is at the revision that this version needs
        for _ in range(2):
            migrate.upgrade(database)
            revision.check(database)
        database.close()


@pytest.mark.parametrize(
    ("option", "told"),
    [("charset=binary", "charset=binary: write utf8mb4"), ("chrset=utf8mb4", "unexpected keyword argument")],
)
def test_an_option_that_is_wrong_is_told_before_anything_is_dialled(option: str, told: str) -> None:
    with pytest.raises(SettingsError, match=rf"database_url: .*{told}"):
        Database(f"mysql://app@127.0.0.1:1/orders?{option}")


def test_a_user_logs_in_with_a_password(mariadb: str) -> None:
    # Given a user as the server makes them, whose password it has not seen since: MySQL wants it under RSA or TLS
    server = sa.create_engine(mariadb, isolation_level="AUTOCOMMIT")
    user = "'outbox_login'@'127.0.0.1'"
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP USER IF EXISTS {user}")
        connection.exec_driver_sql(f"CREATE USER {user} IDENTIFIED BY 'geheim'")
        try:
            # When a daemon connects / Then it is that user
            url = server.url.set(username="outbox_login", password="geheim", database="information_schema")
            database = Database(url.render_as_string(hide_password=False))
            with database.look() as own:
                assert own.scalar(sa.text("SELECT current_user()")) == "outbox_login@127.0.0.1"
            database.close()
        finally:
            connection.exec_driver_sql(f"DROP USER {user}")
    server.dispose()
