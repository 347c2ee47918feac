"""Handlers that do what they must not: nothing half-done is ever acknowledged."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from outbox.consumer import Duplicate, Message, Outcome, Park, Processed, Retry
from outbox.consumer.schema import inbox as inbox_table
from outbox.store.database import Database
from tests.integration.consumer.shop import Step, keys_done, record, rows, shop, stock, until_free
from tests.unit.consumer.fakes import delivery


def once(misstep: Step) -> Step:
    """Writes an effect, missteps the first time, and writes another effect."""
    first = iter([True])

    def handler(message: Message, session: Session) -> None:
        record(message, session)
        if next(first, False):
            misstep(message, session)
        record(message, session)

    return handler


def swallowing(misstep: Step) -> Step:
    """Hides whatever the misstep raises."""

    def hidden(message: Message, session: Session) -> None:
        with suppress(Exception):
            misstep(message, session)

    return hidden


def twice(url: str, step: Step) -> tuple[Outcome, Outcome]:
    """The outcomes of two deliveries of one message.

    A connection that was thrown away frees its key a moment later, when the server notices.
    """
    inbox, received = shop(url, step, lock_timeout=20), delivery(keys=("k",))
    try:
        return inbox.process(received), until_free(inbox, received)
    finally:
        inbox.close()


MISSTEPS: dict[str, Step] = {
    "commit": lambda _, session: session.commit(),
    "rollback": lambda _, session: session.rollback(),
    "close": lambda _, session: session.close(),
    "begin": lambda _, session: session.begin(),
    "connection commit": lambda _, session: session.connection().commit(),
    "transaction commit": lambda _, session: session.connection().get_transaction().commit(),  # type: ignore[union-attr]
    "connection rollback": lambda _, session: session.connection().rollback(),
    "connection close": lambda _, session: session.connection().close(),
    "COMMIT": lambda _, session: session.execute(sa.text("COMMIT")),
    "COMMIT in disguise": lambda _, session: session.execute(sa.text("/* in disguise */ COMMIT")),
    "rollback statement": lambda _, session: session.execute(sa.text(" rollback")),
    "new transaction": lambda _, session: session.execute(sa.text("BEGIN")),
}


@pytest.mark.parametrize("hide", [lambda step: step, swallowing], ids=["raised", "swallowed"])
@pytest.mark.parametrize("name", MISSTEPS)
def test_a_handler_that_ends_the_transaction_gets_nothing(
    migrated_url: str, engine: Engine, name: str, hide: Callable[[Step], Step]
) -> None:
    # Given a handler that ends the transaction between two effects, the first time
    step = once(hide(MISSTEPS[name]))
    # When the message is delivered twice
    first, second = twice(migrated_url, step)
    if name == "begin" and hide is swallowing:
        # Then a begin() that was only refused does no harm
        assert (first, second) == (Processed(), Duplicate())
    else:
        # Then the first says why nothing was kept, and the second has both effects
        assert isinstance(first, Retry)
        assert not first.outage
        assert second == Processed()
    assert keys_done(engine) == ["k", "k"]
    assert rows(engine) == 1


def commit_on_driver(_: Message, session: Session) -> None:
    driver = session.connection().connection.dbapi_connection
    assert driver is not None
    driver.commit()


def commit_on_driver_and_fail(message: Message, session: Session) -> None:
    commit_on_driver(message, session)
    raise ValueError("afterwards")


@pytest.mark.parametrize("misstep", [commit_on_driver, commit_on_driver_and_fail])
def test_a_commit_behind_the_inbox_is_parked_and_never_passes_for_done(
    migrated_url: str, engine: Engine, misstep: Step
) -> None:
    # Given a handler that commits where nobody can prevent it
    # When the message is delivered
    first, _ = twice(migrated_url, once(misstep))
    # Then it is not acknowledged as processed: an operator must look, and the second effect is not there
    assert isinstance(first, Park)
    assert "behind the inbox's back" in first.reason
    assert keys_done(engine) == ["k"]


def execute(_: Message, session: Session, sql: str) -> None:
    session.execute(sa.text(sql))


def test_a_statement_that_commits_implicitly_is_refused(migrated_url: str, engine: Engine) -> None:
    # Given MySQL, where DDL commits
    if not migrated_url.startswith(("mysql", "mariadb")):
        step = partial(execute, sql="CREATE TABLE made (id INTEGER)")
        # When DDL is part of the transaction, as elsewhere / Then it is allowed
        assert twice(migrated_url, once(step)) == (Processed(), Duplicate())
        return
    for statement in ("CREATE TABLE made (id INTEGER)", "TRUNCATE effects", "SET autocommit = 1"):
        first, _ = twice(migrated_url, once(partial(execute, sql=statement)))
        # When it is tried / Then it is refused before it happens
        assert isinstance(first, Retry)
        assert "ends the transaction" in first.reason
        with engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM outbox_inbox"))
            connection.execute(sa.text("DELETE FROM effects"))


def test_a_savepoint_is_allowed(migrated_url: str, engine: Engine) -> None:
    # Given a handler that tries an insert inside a savepoint, and goes on after the violation
    def misstep(_: Message, session: Session) -> None:
        session.execute(stock.insert().values(sku="a", quantity=1))
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(stock.insert().values(sku="a", quantity=1))

    # When it is delivered / Then the transaction is whole
    assert twice(migrated_url, once(misstep)) == (Processed(), Duplicate())
    assert keys_done(engine) == ["k", "k"]


def test_a_swallowed_violation_is_no_success_where_it_aborts_the_transaction(
    migrated_url: str, engine: Engine, database: Database
) -> None:
    # Given a handler that swallows a violation without a savepoint
    def misstep(_: Message, session: Session) -> None:
        session.execute(stock.insert().values(sku="a", quantity=1))
        with suppress(IntegrityError):
            session.execute(stock.insert().values(sku="a", quantity=1))

    def step(message: Message, session: Session) -> None:
        record(message, session)
        misstep(message, session)

    first, _ = twice(migrated_url, step)
    if database.dialect == "postgresql":
        # Then PostgreSQL's silent rollback at COMMIT is not taken for success
        assert isinstance(first, Retry)
        assert "swallowed" in first.reason
        assert keys_done(engine) == []
    else:
        # Then elsewhere only the statement was undone
        assert first == Processed()
        assert keys_done(engine) == ["k"]


def test_the_naive_commit_after_a_swallowed_error_loses_the_effect(postgres: str) -> None:
    # Given PostgreSQL, a naive consumer that swallows an error and commits
    engine = sa.create_engine(postgres)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE effect (n INTEGER)")
        connection.commit()
        connection.exec_driver_sql("INSERT INTO effect VALUES (1)")
        with suppress(DBAPIError):
            connection.exec_driver_sql("SELECT * FROM missing")
        # When it commits / Then nobody says a word, and the effect is gone
        connection.commit()
        assert connection.exec_driver_sql("SELECT count(*) FROM effect").scalar_one() == 0
    engine.dispose()


def test_a_swallowed_failure_of_a_flush_is_no_success(migrated_url: str, engine: Engine) -> None:
    # Given a handler that swallows the failure of its session's flush
    from sqlalchemy.orm import registry

    mapper = registry()

    class Item:
        def __init__(self, sku: str, quantity: int) -> None:
            self.sku, self.quantity = sku, quantity

    mapper.map_imperatively(Item, stock)

    def misstep(_: Message, session: Session) -> None:
        session.add(Item("a", -1))
        with suppress(DBAPIError):
            session.flush()

    # When it is delivered / Then nothing is kept the first time
    first, second = twice(migrated_url, once(misstep))
    assert isinstance(first, Retry)
    assert second == Processed()
    assert keys_done(engine) == ["k", "k"]
    mapper.dispose()


def test_what_the_session_holds_is_written_before_the_commit(migrated_url: str, engine: Engine) -> None:
    # Given a handler that adds to the session and does not flush, and a violation that only the flush shows
    from sqlalchemy.orm import registry

    mapper = registry()

    class Item:
        def __init__(self, sku: str, quantity: int) -> None:
            self.sku, self.quantity = sku, quantity

    mapper.map_imperatively(Item, stock)
    inbox = shop(migrated_url, lambda message, session: session.add(Item("a", 1 if message.key == "good" else -1)))
    good, bad = (inbox.process(delivery(keys=(key,))) for key in ("good", "bad"))
    inbox.close()
    # Then the good one is durable, the bad one is not acknowledged
    assert good == Processed()
    assert isinstance(bad, Retry)
    with engine.connect() as connection:
        assert connection.execute(sa.select(stock.c.sku)).scalars().all() == ["a"]
        assert connection.execute(sa.select(sa.func.count()).select_from(inbox_table)).scalar_one() == 1
    mapper.dispose()


def test_a_violation_of_the_business_is_not_a_duplicate(migrated_url: str, engine: Engine) -> None:
    # Given a handler that breaks a unique constraint of its own tables
    with engine.begin() as connection:
        connection.execute(stock.insert().values(sku="a", quantity=1))
    step = lambda _, session: session.execute(stock.insert().values(sku="a", quantity=1))  # noqa: E731
    inbox, received = shop(migrated_url, step), delivery(keys=("k",))
    # When it is delivered, and the naive consumer would read "IntegrityError: duplicate, acknowledge"
    outcome = inbox.process(received)
    # Then it is a failure, and the key is free for the next attempt
    assert isinstance(outcome, Retry)
    assert "IntegrityError" in outcome.reason
    assert rows(engine) == 0
    inbox.close()


def _generator(message: Message, session: Session) -> Iterator[None]:
    record(message, session)
    yield


async def _asynchronous_generator(message: Message, session: Session) -> AsyncIterator[None]:
    record(message, session)
    yield


@pytest.mark.parametrize("promise", [_generator, _asynchronous_generator])
def test_a_handler_that_only_promises_to_work_is_not_done(migrated_url: str, engine: Engine, promise: Step) -> None:
    # Given a handler that is a generator, of which nothing runs when it is called
    # When it is delivered / Then it is not acknowledged
    first, _ = twice(migrated_url, promise)
    assert isinstance(first, Retry)
    assert "its work was not done" in first.reason
    assert rows(engine) == 0
