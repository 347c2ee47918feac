"""The library call where databases differ: exact keys, bodies, other constraints, transactions side by side."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from outbox import DuplicateKey, NoTransaction, Outbox
from outbox.message import BODY_BYTES
from outbox.schema import outbox
from outbox.store import insert
from outbox.store.claims import Claims
from outbox.store.database import Database
from outbox.store.operations import Operations
from tests.integration.conftest import Copies
from tests.integration.producers import application, message, orders, service
from tests.waiting import expect_soon

#: Seconds for threads; generous, the machine may be busy.
DEADLINE = 60.0
ALIKE = ["a1", "A1", "a1 ", " a1", "a 1", "é", "e\u0301", "É", "ß", "ss", "订单", "a1_", "a1%", "'a1'", 'a"1', "a\\1"]


@pytest.fixture
def engine(migrated_url: str, database: Database) -> Iterator[Engine]:
    """The application's engine."""
    orders.create(database.engine)
    engine = application(migrated_url)
    yield engine
    engine.dispose()


def keys(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(outbox.c.key).order_by(outbox.c.id)).scalars())


def test_keys_that_look_alike_are_different_keys(engine: Engine) -> None:
    # Given keys that differ in case, blanks or Unicode form only / When all are added
    with engine.begin() as connection:
        for key in ALIKE:
            service.add(connection, **message({"key": key}))
    # Then each has a row of its own and comes back as it was
    assert keys(engine) == ALIKE
    with engine.begin() as connection:
        for key in ALIKE:
            with pytest.raises(DuplicateKey):
                service.add(connection, **message({"key": key}))


def test_one_key_may_be_used_in_each_topic(engine: Engine) -> None:
    with engine.begin() as connection:
        for topic in ("payments", "Payments", "refunds"):
            service.add(connection, **message({"topic": topic}))
    assert keys(engine) == ["order-1:paid"] * 3


@pytest.mark.parametrize(
    "body",
    [bytes(range(256)) * 8, b"\x00", b"\xff\xfe\x00\x01", b"'" * BODY_BYTES],
    ids=["all", "zero", "bom", "4 MiB"],
)
def test_a_body_is_kept_byte_for_byte(engine: Engine, database: Database, body: bytes) -> None:
    with engine.begin() as connection:
        service.add(connection, **message({"payload": body}))
    (attempt,) = Claims(database).claim(1, 1, lease=30)
    assert attempt.payload == body
    assert attempt.content_type == "application/octet-stream"


def test_headers_tags_and_types_come_back_as_they_were(engine: Engine, database: Database) -> None:
    headers = {"trace-id": "00-4bf", "naïve": "ünï \"q\" 'a' \\", "empty": "", "smile": "😀"}
    with engine.begin() as connection:
        service.add(connection, **message({"headers": headers, "tag": "bezahlt-ß", "content_type": "text/x; é=1"}))
    (attempt,) = Claims(database).claim(1, 1 << 20, lease=30)
    assert (attempt.headers, attempt.tag, attempt.content_type) == (headers, "bezahlt-ß", "text/x; é=1")


def test_another_unique_violation_is_not_taken_for_a_duplicate(engine: Engine) -> None:
    # Given a second unique index, as an application might add one
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE UNIQUE INDEX ux_application ON outbox (tag)"))
    with engine.begin() as connection:
        service.add(connection, **message({"key": "a", "tag": "once"}))
    # When another key violates it / Then the database's own error comes through
    with engine.connect() as connection, pytest.raises(IntegrityError):
        service.add(connection, **message({"key": "b", "tag": "once"}))
    assert keys(engine) == ["a"]


def test_an_earlier_row_that_retention_deletes_meanwhile_frees_the_key(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.dialect.name == "mysql":
        assert engine.dialect.name == "mysql"  # the refused INSERT locks the row: nobody can delete it
        return
    with engine.begin() as connection:
        first = service.add(connection, **message({}))
    look = insert._earlier

    def purged(connection: Connection, columns: dict[str, object]) -> object:
        connection.execute(outbox.delete())
        return look(connection, columns)

    monkeypatch.setattr(insert, "_earlier", purged)
    with engine.begin() as connection:
        assert service.add(connection, **message({})) != first
    assert keys(engine) == ["order-1:paid"]


def lock_waits(engine: Engine) -> bool:
    """Whether a transaction waits for a lock; SQLite does not tell, and its order does not matter here."""
    queries = {
        "postgresql": "SELECT 'waits', count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database()",
        # innodb_trx stays as it was seen first for whoever looks again within a tenth of a second.
        "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
    }
    if (query := queries.get(engine.dialect.name)) is None:
        return True
    with engine.connect() as connection:
        _, waits = connection.execute(sa.text(query)).one()
        return int(waits) > 0


@pytest.mark.parametrize("first_commits", [True, False])
def test_of_two_transactions_with_one_key_the_second_waits_for_the_first(engine: Engine, first_commits: bool) -> None:
    started = threading.Event()

    def second() -> int | DuplicateKey:
        with engine.begin() as connection:
            started.set()
            try:
                added = service.add(connection, **message({}))
            except DuplicateKey as error:
                added_or_error: int | DuplicateKey = error
            else:
                added_or_error = added
            connection.execute(orders.insert().values(id=2))
            return added_or_error

    # Given a transaction that has added a key
    with ThreadPoolExecutor(1) as threads, engine.connect() as connection:
        first = service.add(connection, **message({}))
        # When another one adds it too and the first one ends
        waiting = threads.submit(second)
        assert started.wait(DEADLINE)
        expect_soon(lambda: lock_waits(engine), "the second one waits for a lock", within=DEADLINE)
        (connection.commit if first_commits else connection.rollback)()
        outcome = waiting.result(DEADLINE)
    # Then there is one row: the first one's if it committed, else the second one's
    assert keys(engine) == ["order-1:paid"]
    if first_commits:
        assert isinstance(outcome, DuplicateKey)
        assert outcome.row_id == first
    else:
        assert isinstance(outcome, int)
    with engine.connect() as connection:
        assert connection.execute(sa.select(orders.c.id)).scalars().all() == [2]


def read_before(connection: Connection) -> list[int]:
    """A transaction that has read: under MySQL's REPEATABLE READ it has its snapshot, and MariaDB can hold it to that.

    The orders that it has written; on SQLite none, or nobody else could write.
    """
    if getattr(connection.dialect, "is_mariadb", False):
        with suppress(OperationalError):  # older than the setting; from 11.6 on it is the default
            connection.exec_driver_sql("SET innodb_snapshot_isolation = ON")
    assert connection.execute(sa.select(outbox.c.id)).all() == []
    if connection.dialect.name == "sqlite":
        return []
    connection.execute(orders.insert().values(id=1))
    return [1]


def test_a_key_that_was_taken_after_our_snapshot_is_seen(engine: Engine) -> None:
    # Given a transaction that has read
    with engine.connect() as connection:
        written = read_before(connection)
        # When another one commits the key
        with engine.begin() as other:
            first = service.add(other, **message({}))
        # Then the row is found all the same, and the transaction goes on
        with pytest.raises(DuplicateKey) as caught:
            service.add(connection, **message({}))
        connection.commit()
    assert caught.value.row_id == first
    with engine.connect() as connection:
        assert connection.execute(sa.select(orders.c.id)).scalars().all() == written


def test_a_lane_that_was_used_first_after_our_snapshot_is_joined(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("has one writer at a time")
    # Given a transaction that has read
    with engine.connect() as connection:
        written = read_before(connection)
        # When another one adds the first row of a lane; Then ours adds to the lane all the same, and loses nothing
        with engine.begin() as other:
            service.add(other, **message({"key": "first"}), lane="a")
        service.add(connection, **message({"key": "second"}), lane="a")
        connection.commit()
    assert keys(engine) == ["first", "second"]
    with engine.connect() as connection:
        assert connection.execute(sa.select(orders.c.id)).scalars().all() == written


@pytest.mark.parametrize(
    "opened",
    [lambda engine: engine.connect().execution_options(isolation_level="AUTOCOMMIT"),
     lambda engine: engine.execution_options(isolation_level="AUTOCOMMIT").connect(),
     lambda engine: sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"))()],
    ids=["connection", "engine copy", "session"],
)  # fmt: skip
def test_every_way_into_autocommit_is_refused(engine: Engine, opened: Callable[[Engine], Connection | Session]) -> None:
    with opened(engine) as held, pytest.raises(NoTransaction):
        service.add(held, **message({}))
    assert keys(engine) == []


def test_sqlite_with_its_own_begin_is_a_transaction_and_without_one_is_not(
    tmp_path_factory: pytest.TempPathFactory, sqlite_copies: Copies
) -> None:
    # Given a driver that never issues BEGIN by itself, as SQLAlchemy's recipe for SQLite has it
    with sqlite_copies(tmp_path_factory.mktemp("begin")) as url:
        engine = sa.create_engine(url, connect_args={"isolation_level": None})
        with engine.connect() as connection, pytest.raises(NoTransaction):
            service.add(connection, **message({}))
        # When the application issues it / Then the row shares its transaction
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            service.add(connection, **message({}))
            connection.exec_driver_sql("ROLLBACK")
        assert keys(engine) == []
        engine.dispose()


def test_wrong_use_is_told_by_name(engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(TypeError, match="Session, Connection, AsyncSession or AsyncConnection"):
            service.add(connection.connection, **message({}))  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="if_exists='ignore'"):
            service.add(connection, **message({"if_exists": "ignore"}))


def test_one_text_is_no_collection_of_plain_topics() -> None:
    with pytest.raises(TypeError, match="plain_topics: 'logs' is one text"):
        Outbox(origin="tests", plain_topics="logs")


def test_plain_topics_are_marked(engine: Engine) -> None:
    producer = Outbox(origin="tests", plain_topics=["logs"])
    with engine.begin() as connection:
        producer.add(connection, topic="logs", key="a", payload=b"x")
        producer.add(connection, topic="payments", key="b", payload=b"x")
    with engine.connect() as connection:
        modes = connection.execute(sa.select(outbox.c.mode).order_by(outbox.c.id)).scalars().all()
    assert modes == ["plain", "transactional"]


def test_a_delay_counts_from_the_insert_by_the_databases_clock(engine: Engine, database: Database) -> None:
    # Given delays from a minute to a century / When messages are added with them
    delays = {"minute": timedelta(minutes=1), "century": timedelta(days=36_525)}
    with engine.begin() as transaction:
        for key, delay in delays.items():
            service.add(transaction, **message({"key": key, "delay": delay}))
    # Then each row is due that long after it was written, and nobody claims it before
    with database.transaction() as connection:
        query = sa.select(outbox.c.key, outbox.c.not_before, outbox.c.available_at, outbox.c.created_at)
        rows = {row.key: row for row in connection.execute(query)}
    for key, delay in delays.items():
        assert rows[key].not_before == rows[key].available_at == rows[key].created_at + delay
    assert Claims(database).claim(10, 1 << 20, lease=30) == []


def test_a_delayed_row_is_cancelled_before_its_time(engine: Engine, database: Database) -> None:
    # Given a plain and a transactional row that are not due
    with engine.begin() as transaction:
        fields = [{"topic": topic, "delay": timedelta(days=400)} for topic in ("logs", "payments")]
        rows = [service.add(transaction, **message(it)) for it in fields]
    # When they are cancelled; Then both are
    assert Operations(database).cancel(rows, "not wanted any more") == rows


def test_the_brokers_timer_is_a_property_of_a_plain_row(engine: Engine, database: Database) -> None:
    # Given a moment that the broker's timer takes by now, one that it will take later, and a level
    near = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    far = near + timedelta(days=30)
    with engine.begin() as transaction:
        service.add(transaction, **message({"topic": "logs", "key": "near", "deliver_at": near}))
        service.add(transaction, **message({"topic": "logs", "key": "far", "deliver_at": far}))
        service.add(transaction, **message({"topic": "logs", "key": "level", "delay_level": 3, "headers": {"a": "b"}}))
    # When rows are claimed; Then the far one is kept back until the broker can take it
    claimed = {attempt.key: attempt for attempt in Claims(database).claim(10, 1 << 20, lease=30)}
    assert sorted(claimed) == ["level", "near"]
    assert claimed["near"].headers == {"TIMER_DELIVER_MS": str(int(near.timestamp() * 1000))}
    assert claimed["level"].headers == {"a": "b", "DELAY": "3"}
    with database.transaction() as connection:
        query = sa.select(outbox.c.available_at).where(outbox.c.key == "far")
        assert connection.execute(query).scalar_one() == far - timedelta(days=2)
