"""The revisions lead to the declared schema, by every way, and back."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

import outbox.consumer.schema  # noqa: F401 -- declares the consumer's tables
from outbox import migrate, revision
from outbox.columns import MYSQL_FAMILY
from outbox.errors import SchemaError
from outbox.lifecycle import State, open_states
from outbox.message import Mode
from outbox.schema import metadata
from outbox.schema import outbox as rows
from outbox.store.database import Database
from outbox.store.identity import Identity
from tests.migration.catalog import catalog

INSERT = """
INSERT INTO outbox (topic, {key}, payload, content_type, headers, mode, state, available_at, created_at)
VALUES ('t', :k, 'p', 'text/plain', '{{}}', :mode, :state, '2030-01-01 00:00:00', '2030-01-01 00:00:00')
"""


def insert(database: Database, key: str, *, state: str = State.PENDING, mode: str = Mode.PLAIN) -> None:
    """A row written past the toolkit."""
    quoted = "`key`" if database.dialect in MYSQL_FAMILY else '"key"'
    with database.transaction() as connection:
        connection.execute(sa.text(INSERT.format(key=quoted)), {"k": key, "state": state, "mode": mode})


def schema_of(database: Database) -> list[str]:
    with database.engine.connect() as connection:
        return catalog(connection)


def revision_of(database: Database) -> str | None:
    with database.engine.connect() as connection:
        return revision.current(connection)


def statements(script: str) -> list[str]:
    """The script's statements, as somebody who pastes them one by one runs them."""
    without_comments = re.sub(r"^--.*$", "", script, flags=re.MULTILINE)
    return [statement.strip() for statement in without_comments.split(";\n") if statement.strip()]


def test_a_server_that_is_too_old_gets_no_tables(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a release that is older than the oldest
    monkeypatch.setattr("outbox.migrate.oldest_of", lambda _: (1000,))
    # When the schema is asked for; Then it is refused, and told why
    with pytest.raises(SchemaError, match=r"is \w+ [0-9.]+: the toolkit needs \w+ 1000 or newer"):
        migrate.upgrade(empty)
    assert revision_of(empty) is None


def test_head_takes_every_state_and_mode_and_no_other(empty: Database) -> None:
    # Given a database at head / When rows are written past the toolkit
    migrate.upgrade(empty)
    for state in State:
        insert(empty, f"in {state}", state=state)
    for mode in Mode:
        insert(empty, f"as {mode}", mode=mode)
    # Then the database itself refuses what the lifecycle does not know
    for wrong in ("", "Pending", "PENDING", "sent"):
        with pytest.raises(DBAPIError):
            insert(empty, f"wrong {wrong}", state=wrong)
    with pytest.raises(DBAPIError):
        insert(empty, "wrong mode", mode="fast")
    with empty.transaction() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM outbox")) == len(State) + len(Mode)


def test_head_keeps_topic_and_key_unique(empty: Database) -> None:
    migrate.upgrade(empty)
    insert(empty, "k")
    insert(empty, "K")
    insert(empty, "k ")
    with pytest.raises(DBAPIError):
        insert(empty, "k")


def test_head_is_the_declared_schema(empty: Database, declared: Database) -> None:
    # Given one database that was migrated and one that was built from the declared tables
    migrate.upgrade(empty)
    metadata.create_all(declared.engine)
    # When both describe themselves / Then they use the same words
    assert schema_of(empty) == schema_of(declared)


def test_autogenerate_finds_nothing_to_do(empty: Database) -> None:
    migrate.upgrade(empty)

    def included(item: Any, _name: str | None, kind: str, reflected: bool, _other: Any) -> bool:
        """Autogenerate does not know of ``ddl_if``: an index of other dialects is not missing."""
        if kind != "index" or reflected or item._ddl_if is None:
            return True
        return bool(item._ddl_if.callable_(dialect=empty.engine.dialect))

    with empty.engine.connect() as connection:
        options = {"compare_type": True, "include_object": included, "version_table": revision.VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_the_printed_script_builds_the_same_schema(empty: Database, declared: Database) -> None:
    # Given the script of this dialect
    script = migrate.sql({"mariadb": "mysql"}.get(empty.dialect, empty.dialect))
    # When its statements are run one by one on an empty database
    with empty.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        cursor = raw.cursor()
        for statement in statements(script):
            cursor.execute(statement)
        raw.commit()
    # Then it is what an upgrade builds, and known to be at head
    migrate.upgrade(declared)
    assert schema_of(empty) == schema_of(declared)
    revision.check(empty)
    assert re.fullmatch("[0-9a-f]{16}", Identity(empty).database_id())


def test_a_script_draws_another_identity_each_time(empty: Database, declared: Database) -> None:
    migrate.upgrade(empty)
    migrate.upgrade(declared)
    assert Identity(empty).database_id() != Identity(declared).database_id()


def test_an_upgrade_repeated_changes_nothing(empty: Database) -> None:
    # Given a database at head with a row
    migrate.upgrade(empty)
    insert(empty, "k")
    before, identity = schema_of(empty), Identity(empty).database_id()
    # When it is upgraded again
    migrate.upgrade(empty)
    # Then schema, identity and row are as they were
    assert schema_of(empty) == before
    assert Identity(empty).database_id() == identity
    with pytest.raises(DBAPIError):
        insert(empty, "k")


def test_upgrades_at_the_same_time_follow_each_other(empty: Database) -> None:
    # Given four deployments that start at once
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(migrate.upgrade, empty) for _ in range(4)]
    # Then none fails, and one identity was drawn
    assert [future.exception() for future in futures] == [None] * 4
    assert revision_of(empty) == revision.head()
    assert len(Identity(empty).database_id()) == 16


def test_the_next_upgrade_begins_when_the_last_one_is_committed(empty: Database) -> None:
    # Given an upgrade of a database whose lock does not end with the transaction
    if empty.dialect not in MYSQL_FAMILY:
        return
    seen: list[str | None] = []

    def released(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        """What the next one sees, which has waited for the lock."""
        if "release_lock" in statement.lower():
            seen.append(revision_of(empty))

    event.listen(empty.engine, "before_cursor_execute", released)
    migrate.upgrade(empty)
    # Then others get the lock once they can see what was done
    assert seen == [revision.head()]


class Died(Exception):
    """As SIGKILL: nothing is done afterwards."""


def test_an_upgrade_that_died_anywhere_is_taken_up(empty: Database, declared: Database) -> None:
    metadata.create_all(declared.engine)
    left = 0

    def die(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal left
        changes = statement.split()[0] in {"CREATE", "ALTER", "INSERT", "UPDATE"}
        left -= changes
        if changes and left == 0:
            raise Died

    event.listen(empty.engine, "after_cursor_execute", die)
    for survived in range(1, 100):
        # Given an upgrade that dies, one change further on than the last one
        left = survived
        try:
            migrate.upgrade(empty)
        except Died:
            # When another one is run / Then it leads to the declared schema, and one identity was drawn
            migrate.upgrade(empty)
        revision.check(empty)
        assert schema_of(empty) == schema_of(declared)
        with empty.transaction() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM outbox_database")) == 1
        if left > 0:
            break
        drop_all(empty)
    assert survived > 20


def drop_all(database: Database) -> None:
    there = sa.MetaData()
    there.reflect(database.engine)
    there.drop_all(database.engine)


def test_a_table_of_somebody_else_is_not_taken_for_a_part_of_the_schema(empty: Database) -> None:
    with empty.transaction() as connection:
        connection.execute(sa.text("CREATE TABLE outbox (id INTEGER)"))
    with pytest.raises(DBAPIError, match="already exists"):
        migrate.upgrade(empty)
    assert revision_of(empty) is None


def test_the_revisions_are_those_that_alembic_knows() -> None:
    script = ScriptDirectory.from_config(migrate._config())
    assert revision.head() == script.get_current_head()
    assert [it.revision for it in script.walk_revisions() if not revision.knows(it.revision)] == []
    assert not revision.knows("")


def test_a_check_tells_missing_old_and_newer_schemas_apart(empty: Database) -> None:
    with pytest.raises(SchemaError, match="outbox db upgrade"):
        revision.check(empty)
    with empty.engine.begin() as connection:
        command.upgrade(migrate._config(connection=connection), "0001")
    with pytest.raises(SchemaError, match=r"revision 0001, .* run `outbox db upgrade`"):
        revision.check(empty)
    migrate.upgrade(empty)
    revision.check(empty)
    with empty.transaction() as connection:
        connection.execute(sa.text(f"UPDATE {revision.VERSION_TABLE} SET version_num = '9999'"))
    # An upgrade would not help there
    with pytest.raises(SchemaError, match=r"revision 9999, which .* does not know.* install") as newer:
        revision.check(empty)
    assert "db upgrade" not in str(newer.value)
    with pytest.raises(SchemaError, match="9999"):
        migrate.upgrade(empty)


def test_rows_of_lanes_take_their_places(empty: Database) -> None:
    # Given rows of a lane that were written before places were kept
    with empty.engine.begin() as connection:
        command.upgrade(migrate._config(connection=connection), "0004")
    for state in State:
        insert(empty, state, state=state)
    with empty.transaction() as connection:
        connection.execute(sa.text("UPDATE outbox SET lane = 'order-42'"))
    insert(empty, "elsewhere")
    # When the schema is upgraded; Then those that are open stand in their lane
    migrate.upgrade(empty)
    found = sa.select(rows.c.key).where(rows.c.open_lane == "t/order-42").order_by(rows.c.id)
    with empty.transaction() as connection:
        assert list(connection.execute(found).scalars()) == list(open_states())
        assert connection.scalar(sa.select(sa.func.count()).where(rows.c.open_lane.is_not(None))) == 2


def test_a_downgrade_to_base_leaves_nothing(empty: Database) -> None:
    migrate.upgrade(empty)
    insert(empty, "k")
    with empty.engine.begin() as connection:
        command.downgrade(migrate._config(connection=connection), "base")
    assert schema_of(empty) == []
    assert revision_of(empty) is None
    migrate.upgrade(empty)
    assert revision_of(empty) == revision.head()


def test_an_id_names_one_row_for_ever(empty: Database) -> None:
    # Given a table whose last row was deleted
    migrate.upgrade(empty)
    insert(empty, "a")
    with empty.transaction() as connection:
        first = connection.scalar(sa.text("SELECT max(id) FROM outbox"))
        connection.execute(sa.text("DELETE FROM outbox"))
    # When another row is added / Then it does not get the old one's id
    insert(empty, "b")
    with empty.transaction() as connection:
        assert connection.scalar(sa.text("SELECT max(id) FROM outbox")) > first


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "sqlite"])
def test_a_script_needs_no_database_and_no_bind_values(dialect: str) -> None:
    script = migrate.sql(dialect)
    assert "CREATE TABLE outbox (" in script
    assert not re.search(r"%\(|:\w+_1|\?", script)
