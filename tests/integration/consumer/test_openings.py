"""The claim that opens its transaction on PostgreSQL: round trips, prepared statements, and who is first."""

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outbox.consumer import Duplicate, Inbox, InProgress, Message, Park, Processed, Retry, claims, opening
from outbox.consumer.claims import Claim, Earlier, Inserted
from outbox.consumer.drivers import begun
from outbox.consumer.schema import inbox as inbox_table
from outbox.store.clock import utc_now
from outbox.store.database import Database
from tests.integration.conftest import Copies
from tests.integration.consumer.shop import keys_done, metadata, record, rows, shop
from tests.integration.strategies.rig import asynchronous
from tests.unit.consumer.fakes import DEADLINE, delivery
from tests.waiting import expect_soon

FIRST = delivery(keys=("k",), body=b"same")
CLAIM = Claim("stock", b"k", "payments", b"h" * 32)
PREPARED = sa.text("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'outbox_claim%'")


@pytest.fixture
def engine(postgresql_copies: Copies) -> Iterator[Engine]:
    """One back end is enough here; of one connection, so that what it remembers shows."""
    with postgresql_copies(None) as url:  # type: ignore[arg-type]
        database = Database(url, pool_size=1, statement_timeout=DEADLINE)
        metadata.create_all(database.engine)
        yield database.engine
        database.close()


@pytest.fixture
def other(engine: Engine) -> Iterator[Connection]:
    """Another client of the same database."""
    elsewhere = sa.create_engine(engine.url)
    with elsewhere.connect() as connection:
        yield connection
    elsewhere.dispose()


@pytest.fixture(params=["sync", "async"])
def database(request: pytest.FixtureRequest, engine: Engine) -> Engine | AsyncEngine:
    """What the inbox is given."""
    return engine if request.param == "sync" else asynchronous(engine)


def fresh(number: int) -> Any:
    return delivery(keys=(f"k{number}",), body=b"same")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each answer of a server that somebody waits for."""
    waits: list[object] = []

    def noticed(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(generator)
            waits.append(wanted)
            while True:
                wanted = generator.send((yield wanted))
        except StopIteration as end:
            return end.value

    def noticing(wait: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, generator, *how, **more: wait(self, noticed(generator), *how, **more)

    for kind in (psycopg.Connection, psycopg.AsyncConnection):
        monkeypatch.setattr(kind, "wait", noticing(kind.wait))
    return waits


def trips(waits: list[object], work: Callable[[], object]) -> int:
    before = len(waits)
    work()
    return len(waits) - before


def test_a_claim_and_a_repeat_take_few_round_trips(
    database: Engine | AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an inbox that has worked, and a handler of one statement
    inbox, waits = shop(database), counted(monkeypatch)
    for number in range(3):
        inbox.process(fresh(number))
    # When a message is new / Then it takes its claim, its statement and COMMIT
    assert trips(waits, lambda: inbox.process(FIRST)) == 3
    # When it is repeated / Then the claim, and its look with the end; once more, or redelivered, the look alone
    assert trips(waits, lambda: inbox.process(FIRST)) == 2
    assert trips(waits, lambda: inbox.process(FIRST)) == 1
    assert inbox.process(fresh(4)) == Processed()
    assert trips(waits, lambda: inbox.process(replace(FIRST, attempt=2))) == 1
    inbox.close()


def test_of_two_at_once_the_second_waits_for_nobody(engine: Engine, other: Connection) -> None:
    # Given another consumer that has claimed the key, in an open transaction
    claims.insert(_opened(other), CLAIM, 5)
    # When the key is claimed / Then it is taken, and there is nothing to see
    with begun(engine) as connection:
        assert claims.insert(connection, CLAIM, 5) is Inserted.TAKEN
        assert claims.conclude(connection, CLAIM) is None
    # When it comes to an inbox, again or not / Then somebody works on it
    inbox = shop(engine)
    assert inbox.process(FIRST) == inbox.process(replace(FIRST, attempt=2)) == InProgress()
    assert keys_done(engine) == []


def test_what_is_committed_between_claim_and_look_is_seen(engine: Engine, other: Connection) -> None:
    # Given a key that is taken while another consumer works on it
    claims.insert(_opened(other), CLAIM, 5)
    with begun(engine) as connection:
        assert claims.insert(connection, CLAIM, 5) is Inserted.TAKEN
        # When that one commits before the look
        other.commit()
        # Then the look sees it
        assert claims.conclude(connection, CLAIM) == Earlier("payments", CLAIM.payload_hash, is_done=True)


def test_the_key_of_one_that_rolled_back_is_free(engine: Engine, other: Connection) -> None:
    # Given a key that was claimed by a transaction that was aborted
    claims.insert(_opened(other), CLAIM, 5)
    other.rollback()
    # When it comes again / Then it takes effect, once
    inbox = shop(engine)
    assert [inbox.process(replace(FIRST, attempt=2)), inbox.process(FIRST)] == [Processed(), Duplicate()]
    assert keys_done(engine) == ["k"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_writer_that_knows_nothing_of_the_lock_is_waited_for(engine: Engine, other: Connection, end: str) -> None:
    # Given a row of the key that another program has inserted, and not committed
    inbox, outcomes = shop(engine, lock_timeout=DEADLINE), list[object]()
    row = Claim.of("stock", _message()).columns() | {"received_at": utc_now(), "done_at": utc_now()}
    other.execute(inbox_table.insert().values(row))
    # When the key is delivered, and the other one ends
    thread = threading.Thread(target=lambda: outcomes.append(inbox.process(FIRST)))
    thread.start()
    _until_somebody_waits(other)
    getattr(other, end)()
    thread.join(DEADLINE)
    # Then its row decides
    assert outcomes == [Duplicate() if end == "commit" else Processed()]


def test_a_wait_that_is_too_long_is_a_retry(engine: Engine, other: Connection) -> None:
    # Given a row of the key that somebody keeps open
    inbox = shop(engine, lock_timeout=0.1)
    row = Claim.of("stock", _message()).columns() | {"received_at": utc_now()}
    other.execute(inbox_table.insert().values(row))
    # When the key is delivered / Then the database's error is named, and the connection can be used
    said = inbox.process(FIRST)
    assert isinstance(said, Retry)
    assert said.reason.startswith("LockNotAvailable: ")
    assert not said.outage
    assert inbox.process(fresh(1)) == Processed()


def test_another_payload_is_parked_however_it_is_seen(database: Engine | AsyncEngine) -> None:
    # Given a message that was processed
    inbox = shop(database)
    inbox.process(FIRST)
    # When its key comes with another payload: new, after a repeat, redelivered
    contradiction = replace(FIRST, body=b"other")
    said = [inbox.process(contradiction), inbox.process(FIRST), inbox.process(FIRST), inbox.process(contradiction)]
    said.append(inbox.process(replace(contradiction, attempt=3)))
    # Then it is never taken for a repeat
    assert [type(each) for each in said] == [Park, Duplicate, Duplicate, Park, Park]
    inbox.close()


def test_an_undone_row_is_worked_on_by_one(database: Engine | AsyncEngine, engine: Engine) -> None:
    # Given the row that a dead owner of a long handler left, of one whose handler fails first
    failures = iter([ValueError("first"), None])
    row = Claim.of("stock", _message()).columns() | {"received_at": utc_now()}
    with engine.begin() as connection:
        connection.execute(inbox_table.insert().values(row))

    def step(message: Message, session: Session) -> None:
        record(message, session)
        if error := next(failures):
            raise error

    inbox = shop(database, step)
    # When it is delivered until it works / Then its effect is there once
    said = [inbox.process(FIRST), inbox.process(replace(FIRST, attempt=2)), inbox.process(FIRST)]
    assert said == [Retry("ValueError: first"), Processed(), Duplicate()]
    assert keys_done(engine) == ["k"]
    inbox.close()


def test_the_claim_is_prepared_once_and_again_after_a_rollback(engine: Engine) -> None:
    # Given an inbox whose handler fails now and then, so that the driver forgets all statements
    def step(message: Message, session: Session) -> None:
        record(message, session)
        if int(message.key[1:]) % 7 == 0:
            raise ValueError("every seventh")

    inbox = shop(engine, step)
    # When many messages come / Then each has its outcome, and the statement is there in the end
    said = [inbox.process(fresh(number)) for number in range(31)]
    assert [isinstance(each, Processed) for each in said] == [number % 7 > 0 for number in range(31)]
    with engine.connect() as connection:
        assert connection.execute(PREPARED).scalar_one() == 1


def _deallocate(connection: Connection) -> None:
    """As a pooler that hands out another connection of the server."""
    driver: Any = connection.connection.driver_connection
    driver.pgconn.exec_(b"DEALLOCATE ALL")


def _replace(connection: Connection) -> None:
    """As a pooler whose other client has prepared the same name."""
    connection.info[opening._KNOWN] = False


@pytest.mark.parametrize("disturb", [_deallocate, _replace])
def test_a_statement_that_is_not_where_it_was_costs_no_message(
    engine: Engine, disturb: Callable[[Connection], None]
) -> None:
    # Given an inbox that has prepared its claim, on a connection that is another one since
    inbox = shop(engine)
    for number in range(4):
        inbox.process(fresh(number))
    with engine.connect() as connection:
        disturb(connection)
    # When messages come / Then they take effect, each once
    assert [inbox.process(each) for each in (FIRST, FIRST, fresh(5))] == [Processed(), Duplicate(), Processed()]
    assert rows(engine) == 6


def test_a_savepoint_that_a_handler_rolls_back_costs_no_message(engine: Engine) -> None:
    # Given a handler that undoes a part, so that the driver forgets all statements
    def step(message: Message, session: Session) -> None:
        record(message, session)
        nested = session.begin_nested()
        record(message, session)
        nested.rollback()

    inbox = shop(engine, step)
    # When messages come / Then each has one effect
    assert [inbox.process(fresh(number)) for number in range(12)] == [Processed()] * 12
    assert len(keys_done(engine)) == 12


def test_a_driver_that_must_not_prepare_does_not(engine: Engine) -> None:
    # Given connections for a pooler of transactions
    careful = sa.create_engine(engine.url, connect_args={"prepare_threshold": None}, pool_size=1)
    inbox = shop(careful)
    # When messages come / Then they take effect, and nothing was prepared
    assert [inbox.process(each) for each in (fresh(1), fresh(2), fresh(3), fresh(3))][-2:] == [Processed(), Duplicate()]
    with careful.connect() as connection:
        assert connection.execute(PREPARED).scalar_one() == 0
    careful.dispose()


def test_a_connection_that_the_server_ended_is_an_outage_and_made_anew(engine: Engine, other: Connection) -> None:
    # Given an inbox whose idle connection is gone
    inbox = shop(engine)
    inbox.process(fresh(1))
    other.execute(sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"))
    # When messages come / Then the first finds out, and nothing is lost
    said = inbox.process(FIRST)
    assert isinstance(said, Retry)
    assert said.outage
    assert [inbox.process(FIRST), inbox.process(FIRST)] == [Processed(), Duplicate()]


def test_an_error_of_the_claim_surfaces_as_the_database_s(engine: Engine, other: Connection) -> None:
    # Given a database without the table
    inbox = shop(engine)
    other.execute(sa.text("ALTER TABLE outbox_inbox RENAME TO elsewhere"))
    other.commit()
    # When a message comes / Then its outcome says so, and the next one finds the connection whole
    said = inbox.process(FIRST)
    assert isinstance(said, Retry)
    assert said.reason.startswith("UndefinedTable: ")
    other.execute(sa.text("ALTER TABLE elsewhere RENAME TO outbox_inbox"))
    other.commit()
    assert inbox.process(FIRST) == Processed()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_is_kept(engine: Engine, level: Any) -> None:
    # Given an engine of its own isolation, and a handler that asks for it
    strict, seen = engine.execution_options(isolation_level=level), list[str]()

    def step(message: Message, session: Session) -> None:
        seen.append(session.execute(sa.text("SHOW transaction_isolation")).scalar_one())
        record(message, session)

    inbox = shop(strict, step)
    # When messages come / Then each transaction has it, and repeats are known
    said = [inbox.process(each) for each in (FIRST, FIRST, FIRST, fresh(1), fresh(2))]
    assert said == [Processed(), Duplicate(), Duplicate(), Processed(), Processed()]
    assert seen == [level.lower()] * 3


def test_what_an_engine_says_at_the_begin_of_its_transactions_holds(engine: Engine) -> None:
    # Given an engine that opens each transaction with a statement of its own
    own, seen = sa.create_engine(engine.url), list[str]()
    event.listen(own, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL application_name = 'mine'"))

    def step(message: Message, session: Session) -> None:
        seen.append(session.execute(sa.text("SHOW application_name")).scalar_one())
        record(message, session)

    inbox = shop(own, step)
    with engine.begin() as connection:
        dead_owner_s = Claim.of("stock", Message.of(fresh(2), "k2")).columns() | {"received_at": utc_now()}
        connection.execute(inbox_table.insert().values(dead_owner_s))
    # When messages come, also one that a dead owner left undone / Then the handler finds it, and repeats are known
    said = [inbox.process(each) for each in (FIRST, FIRST, FIRST, fresh(1), fresh(2))]
    assert said == [Processed(), Duplicate(), Duplicate(), Processed(), Processed()]
    assert seen == ["mine"] * 3
    own.dispose()


ODD_NAMES = ["it's", "back\\slash", "caf\u00e9", '"quoted"', "%s %(x)s {0} $1; --"]


SESSIONS = ["standard_conforming_strings=on", "standard_conforming_strings=off", "client_encoding=LATIN1"]


@pytest.mark.parametrize("setting", SESSIONS)
def test_names_that_sql_might_misread_are_kept(engine: Engine, setting: str) -> None:
    # Given consumers and topics with quotes and the like
    odd = sa.create_engine(engine.url, connect_args={"options": f"-c {setting}"})
    for name in ODD_NAMES:
        inbox = Inbox(odd, consumer=name)
        inbox.handler(topic=name)(record)
        # When messages come / Then they take effect under these names, once
        said = [inbox.process(replace(FIRST, topic=name)) for _ in range(3)]
        assert said == [Processed(), Duplicate(), Duplicate()]
    with engine.connect() as connection:
        names = connection.execute(sa.select(inbox_table.c.consumer, inbox_table.c.topic, inbox_table.c.key)).all()
    assert sorted(map(tuple, names)) == sorted((name, name, b"k") for name in ODD_NAMES)
    odd.dispose()


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("pay\x00ments", "'pay\\x00ments' contains NUL"),
        ("\u20ac", "'\u20ac' cannot be written in iso8859-1: set client_encoding to UTF8"),
    ],
)
def test_a_topic_that_no_column_takes_is_a_retry(engine: Engine, topic: str, reason: str) -> None:
    # Given a topic with NUL, which the query must not be cut at, or one that the session has no letters for
    latin = sa.create_engine(engine.url, connect_args={"options": "-c client_encoding=LATIN1"})
    inbox = Inbox(latin, consumer="stock")
    inbox.handler(topic=topic)(record)
    # When a message comes / Then the field is named, and nothing is kept
    said = inbox.process(replace(FIRST, topic=topic))
    latin.dispose()
    assert isinstance(said, Retry)
    assert reason in said.reason
    assert (keys_done(engine), rows(engine)) == ([], 0)


def _opened(connection: Connection) -> Connection:
    connection.begin()
    return connection


def _message() -> Message:
    return Message.of(FIRST, "k")


def _until_somebody_waits(connection: Connection) -> None:
    """For a lock of this database."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    def somebody_waits() -> bool:
        connection.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
        return bool(connection.execute(waiting).scalar_one())

    expect_soon(somebody_waits, "somebody waits")
