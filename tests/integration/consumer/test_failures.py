"""Errors that databases raise under load and in trouble: each has its outcome."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox.consumer import (
    BusinessConsumer,
    Duplicate,
    Inbox,
    InProgress,
    LeasedInbox,
    Message,
    Processed,
    Retry,
)
from outbox.consumer.claims import Claim, insert_undone
from outbox.store.conflicts import TRIES
from outbox.store.database import Database
from tests.integration.consumer.shop import Step, count, effects, keys_done, record, rows, shop, stock, until_free
from tests.unit.consumer.fakes import delivery

#: How each database is made to raise an error of our choice.
RAISE = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{}', MESSAGE = 'injected'; END $$",
    "mariadb": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {}, MESSAGE_TEXT = 'injected'",
}
#: Serialisation failure, deadlock, lock timeout, statement timeout; deadlock, lock timeout.
CODES = [("postgresql", "40001"), ("postgresql", "40P01"), ("postgresql", "55P03"), ("postgresql", "57014"),
         ("mariadb", "1213"), ("mariadb", "1205")]  # fmt: skip
#: Those of them by which the database sacrifices one transaction to another.
SACRIFICED = ("40001", "40P01", "1213")


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize(("dialect", "code"), CODES)
def test_a_transient_error_undoes_everything_and_is_a_retry(
    request: pytest.FixtureRequest, dialect: str, code: str, swallow: bool
) -> None:
    # Given a handler in which the database gives up once, between two effects
    copies = request.getfixturevalue(f"{dialect}_copies")
    errors = iter([sa.text(RAISE[dialect].format(code))])

    def step(message: Message, session: Session) -> None:
        record(message, session)
        if (error := next(errors, None)) is not None:
            with suppress(DBAPIError) if swallow else nullcontext():
                session.execute(error)
        record(message, session)

    with copies(None) as url, opened(url) as engine:
        inbox, received = shop(url, step, lock_timeout=20), delivery(keys=("k",))
        # When it is delivered twice
        first, second = inbox.process(received), inbox.process(received)
        inbox.close()
        # Then nothing of the first attempt is left; what the database sacrificed is tried again at once
        if code in SACRIFICED and not swallow:
            assert (first, second) == (Processed(), Duplicate())
        else:
            assert isinstance(first, Retry)
            assert not first.outage
            assert second == Processed()
        assert keys_done(engine) == ["k", "k"]


def test_a_transaction_that_is_sacrificed_every_time_is_a_retry(engine: Engine, migrated_url: str) -> None:
    # Given a handler whose transaction the database sacrifices whenever it runs
    runs = []

    def step(message: Message, session: Session) -> None:
        runs.append(message.key)
        raise DBAPIError("UPDATE stock", None, Sacrificed(1213, "Deadlock found"))

    # When it is delivered; Then it is tried a few times, and comes again as after any other error
    inbox = shop(migrated_url, step)
    outcome = inbox.process(delivery(keys=("k",)))
    inbox.close()
    assert isinstance(outcome, Retry)
    assert not outcome.outage
    assert runs == ["k"] * TRIES


class Sacrificed(Exception):
    """A driver's error."""


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    from tests.integration.consumer.shop import metadata

    database = Database(url)
    metadata.create_all(database.engine)
    yield database.engine
    database.close()


def test_a_lock_that_somebody_holds_is_a_retry(migrated_url: str, engine: Engine) -> None:
    # Given a row that another transaction holds
    def take(message: Message, session: Session) -> None:
        record(message, session)
        session.execute(stock.update().values(quantity=stock.c.quantity - 1))

    with engine.begin() as connection:
        connection.execute(stock.insert().values(sku="a", quantity=1))
    inbox, received = shop(migrated_url, take, lock_timeout=0.2, statement_timeout=0.2), delivery(keys=("k",))
    with engine.begin() as other:
        other.execute(stock.update().values(quantity=stock.c.quantity))
        # When the handler wants it / Then it is told to come again
        assert isinstance(inbox.process(received), Retry)
        assert keys_done_by(other) == 0
    inbox.close()
    # And once it is free, everything happens once
    patient = shop(migrated_url, take)
    assert patient.process(received) == Processed()
    assert keys_done(engine) == ["k"]
    patient.close()


def keys_done_by(connection: sa.engine.Connection) -> int:
    return count(connection, effects)


def test_a_live_owner_of_the_key_is_not_waited_for(migrated_url: str, engine: Engine, database: Database) -> None:
    # Given a handler that meets a second delivery of its own key, on another connection
    impatient = {} if database.dialect == "postgresql" else {"lock_timeout": 0.2, "statement_timeout": 0.2}
    second = shop(migrated_url, record, **impatient)
    outcomes = []

    def meeting(message: Message, session: Session) -> None:
        record(message, session)
        outcomes.append(second.process(received))

    first, received = shop(migrated_url, meeting), delivery(keys=("k",))
    # When both have run
    assert first.process(received) == Processed()
    # Then the second left it to the first: PostgreSQL says so at once, the others after their lock time-out
    (outcome,) = outcomes
    assert isinstance(outcome, InProgress if database.dialect == "postgresql" else Retry)
    assert first.process(received) == Duplicate()
    assert keys_done(engine) == ["k"]
    first.close()
    second.close()


def test_a_long_handler_keeps_nobody_waiting(migrated_url: str, engine: Engine, database: Database) -> None:
    # Given the form for long handlers; one that waited would do so until it failed
    patience = 0.2 if database.dialect == "sqlite" else 20
    second = shop(migrated_url, row_lock=True, lock_timeout=50, statement_timeout=patience)
    outcomes = []

    def meeting(message: Message, session: Session) -> None:
        record(message, session)
        outcomes.append(second.process(received))

    first, received = shop(migrated_url, meeting, row_lock=True), delivery(keys=("k",))
    assert first.process(received) == Processed()
    # Then a second delivery finds the key in progress at once (SQLite has one writer at a time anyway)
    assert outcomes == [InProgress()] if database.dialect != "sqlite" else isinstance(outcomes[0], Retry)
    assert first.process(received) == Duplicate()
    assert keys_done(engine) == ["k"]
    first.close()
    second.close()


@pytest.mark.parametrize("row_lock", [False, True], ids=["insert", "row-lock"])
def test_an_undone_row_of_a_dead_owner_is_no_duplicate(migrated_url: str, engine: Engine, row_lock: bool) -> None:
    # Given the row of a long handler whose process died
    received = delivery(keys=("k",))
    with engine.begin() as connection:
        insert_undone(connection, Claim.of("stock", Message.of(received, "k")))
    # When the message comes again, to either form
    inbox = shop(migrated_url, row_lock=row_lock)
    # Then it is processed, once
    assert inbox.process(received) == Processed()
    assert inbox.process(received) == Duplicate()
    assert keys_done(engine) == ["k"]
    assert rows(engine) == 1
    inbox.close()


@pytest.mark.parametrize("arrives", [True, False], ids=["commit arrived", "commit lost"])
def test_an_unknown_result_of_commit_is_a_retry(
    migrated_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    # Given a connection that is cut around its COMMIT
    inbox, received = shop(engine), delivery(keys=("k",))
    commit: Callable[[Any], None] = engine.dialect.do_commit

    def cut(dbapi_connection: Any) -> None:
        monkeypatch.undo()
        if arrives:
            commit(dbapi_connection)
        raise OSError("connection reset by peer")

    monkeypatch.setattr(engine.dialect, "do_commit", cut)
    # When the message is delivered, and again until the server has noticed that the first transaction is over
    first = inbox.process(received)
    last = until_free(inbox, received, Retry)  # which MariaDB says after its lock time-out
    # Then the first claims nothing, and the last finds out
    assert isinstance(first, Retry)
    assert last == (Duplicate() if arrives else Processed())
    assert keys_done(engine) == ["k"]


#: Ends the session's own connection.
KILL = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mariadb": "KILL CONNECTION_ID()"}


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("dialect", list(KILL))
def test_a_connection_that_dies_under_the_handler_keeps_nothing(
    request: pytest.FixtureRequest, dialect: str, swallow: bool
) -> None:
    # Given a handler whose connection the server ends once
    kills = iter([sa.text(KILL[dialect])])

    def step(message: Message, session: Session) -> None:
        record(message, session)
        if (kill := next(kills, None)) is not None:
            for statement in (kill, sa.text("SELECT 1")):  # MySQL says in the first answer only that it was interrupted
                with suppress(Exception) if swallow else nullcontext():
                    session.execute(statement)

    copies = request.getfixturevalue(f"{dialect}_copies")
    with copies(None) as url, opened(url) as engine:
        inbox, received = shop(url, step, lock_timeout=20), delivery(keys=("k",))
        # When it is delivered, and again until the server has let go of what that connection held
        first, last = inbox.process(received), until_free(inbox, received)
        # Then only the last has an effect
        assert isinstance(first, Retry)
        assert first.outage is not swallow
        assert last == Processed()
        assert keys_done(engine) == ["k"]
        inbox.close()


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb", "sqlite"])
def test_a_store_that_is_away_is_an_outage(scheme: str) -> None:
    # Given no server at the address
    url = "sqlite:////nowhere/at/all.db" if scheme == "sqlite" else f"{scheme}://u:p@127.0.0.1:1/db"
    inbox = shop(url)
    # When a message comes / Then it is told apart from a message's own failure
    outcome = inbox.process(delivery())
    assert isinstance(outcome, Retry)
    assert outcome.outage
    inbox.close()


#: As on a server that was demoted: it keeps its connections, and takes no writes over them.
DEMOTE = {"postgresql": "SET default_transaction_read_only = on", "mariadb": "SET SESSION TRANSACTION READ ONLY"}


@pytest.mark.parametrize("strategy", [Inbox, LeasedInbox, BusinessConsumer])
@pytest.mark.parametrize("dialect", list(DEMOTE))
def test_a_server_that_was_demoted_is_an_outage_and_dialled_anew(
    request: pytest.FixtureRequest, dialect: str, strategy: type[Inbox | LeasedInbox | BusinessConsumer]
) -> None:
    # Given a consumer over the application's own engine, whose connection leads to a standby by now
    def step(message: Message, given: Any) -> Processed:
        with given.transaction() if strategy is LeasedInbox else nullcontext(given) as session:
            record(message, session)
        return Processed()

    with request.getfixturevalue(f"{dialect}_copies")(None) as url, opened(url) as outside:
        engine = sa.create_engine(outside.url, pool_size=1, max_overflow=0)
        inbox, received = strategy(engine, consumer="stock"), delivery(keys=("k",))
        inbox.handler(topic="payments")(step)
        assert inbox.process(delivery(keys=("before",))) == Processed()
        with engine.begin() as connection:
            connection.exec_driver_sql(DEMOTE[dialect])
        # When a message comes / Then no retry is charged, and the next try finds the server that takes writes
        said = inbox.process(received)
        assert isinstance(said, Retry)
        assert said.outage
        assert inbox.process(received) == Processed()
        assert keys_done(outside) == ["before", "k"]
        engine.dispose()


def test_another_database_that_is_away_is_not_an_outage_of_the_inbox(migrated_url: str, engine: Engine) -> None:
    # Given a handler that needs a second database, which is away
    other = sa.create_engine("sqlite:////nowhere/at/all.db")
    step: Step = lambda *_: other.connect()  # noqa: E731
    inbox = shop(migrated_url, step)
    # When a message comes / Then it is this message's failure, charged to its retries
    outcome = inbox.process(delivery())
    assert isinstance(outcome, Retry)
    assert not outcome.outage
    assert rows(engine) == 0
    inbox.close()


def test_a_deferred_transaction_that_read_first_cannot_write(tmp_path: Any) -> None:
    # Given the naive SQLite consumer: BEGIN, look whether the key is there, insert
    path = tmp_path / "naive.db"
    one, two = (sqlite3.connect(path, isolation_level=None, timeout=5) for _ in range(2))
    one.executescript("PRAGMA journal_mode=WAL; CREATE TABLE seen (k TEXT PRIMARY KEY)")
    one.execute("BEGIN")
    assert one.execute("SELECT 1 FROM seen WHERE k = 'a'").fetchone() is None
    # When another one writes in between
    two.execute("INSERT INTO seen VALUES ('b')")
    # Then the first fails at once, whatever its busy time-out
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        one.execute("INSERT INTO seen VALUES ('a')")
    one.close()
    two.close()
