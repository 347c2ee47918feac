"""What handlers and databases do wrong, in every strategy that has a guarded transaction of its own.

``tests/integration/consumer/test_failures.py`` and ``test_handlers.py`` ask an ``Inbox`` the same, and more; the
memories in front of it use its transaction.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox.consumer import (
    BatchInbox,
    BusinessConsumer,
    FencedLease,
    LeasedInbox,
    Message,
    Outcome,
    Park,
    Processed,
    Retry,
)
from outbox.consumer.remembering import Executing
from outbox.store.database import Database
from tests.integration.consumer.shop import keys_done, metadata, record
from tests.integration.consumer.test_failures import CODES, RAISE, SACRIFICED
from tests.unit.consumer.fakes import delivery

#: What a handler does in its transaction.
Work = Callable[[Message, Session], object]
RECEIVED: Final = delivery(keys=("k",), body=b"same")


def leased(engine: Engine, work: Work) -> Executing:
    inbox = LeasedInbox(engine, consumer="stock", lock_timeout=20)

    @inbox.handler(topic="payments")
    def on_paid(message: Message, lease: FencedLease) -> None:
        with lease.transaction() as session:
            work(message, session)

    return inbox


def business(engine: Engine, work: Work) -> Executing:
    consumer = BusinessConsumer(engine, consumer="stock", lock_timeout=20)

    @consumer.handler(topic="payments")
    def on_paid(message: Message, session: Session) -> Processed:
        work(message, session)
        return Processed()

    return consumer


def batch(engine: Engine, work: Work) -> Executing:
    inbox = BatchInbox(engine, consumer="stock", lock_timeout=20)

    @inbox.handler(topic="payments")
    def on_paid(messages: Sequence[Message], session: Session) -> None:
        for message in messages:
            work(message, session)

    return inbox


FORMS: Final[dict[str, Callable[[Engine, Work], Executing]]] = {
    "leased": leased,
    "business": business,
    "batch": batch,
}
EVERYWHERE = pytest.mark.parametrize("form", FORMS)


def once(misstep: Work) -> Work:
    """Writes, missteps the first time, writes again."""
    missteps = iter([misstep])

    def work(message: Message, session: Session) -> None:
        record(message, session)
        if (then := next(missteps, None)) is not None:
            then(message, session)
        record(message, session)

    return work


@contextmanager
def opened(url: str, statement_timeout: float = 20) -> Iterator[Engine]:
    database = Database(url, lock_timeout=20, statement_timeout=statement_timeout)
    metadata.create_all(database.engine)
    with closing(database):
        yield database.engine


@EVERYWHERE
@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize(("dialect", "code"), CODES)
def test_a_transient_error_undoes_everything_and_is_a_retry(
    request: pytest.FixtureRequest, form: str, dialect: str, code: str, swallow: bool
) -> None:
    # Given a handler in which the database gives up once, between two effects
    def give_up(_: Message, session: Session) -> None:
        with suppress(DBAPIError) if swallow else nullcontext():
            session.execute(sa.text(RAISE[dialect].format(code)))

    with request.getfixturevalue(f"{dialect}_copies")(None) as url, opened(url) as engine:
        consumer = FORMS[form](engine, once(give_up))
        # When it is delivered / Then nothing of the first attempt is left; what was sacrificed is tried again at once
        first = consumer.process(RECEIVED)
        if code in SACRIFICED and not swallow:
            assert first == Processed()
        else:
            assert isinstance(first, Retry)
            assert not first.outage
            assert consumer.process(RECEIVED) == Processed()
        assert keys_done(engine) == ["k", "k"]


@EVERYWHERE
def test_a_busy_sqlite_is_a_retry(request: pytest.FixtureRequest, form: str, tmp_path: Path) -> None:
    # Given a file that somebody else writes to for longer than the busy time-out
    with request.getfixturevalue("sqlite_copies")(tmp_path) as url, opened(url, 0.5) as engine:
        consumer = FORMS[form](engine, record)
        with sqlite3.connect(str(sa.make_url(url).database), isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            outcome = consumer.process(RECEIVED)
            other.execute("ROLLBACK")
        other.close()
        # Then the message comes again, and no retry of others is charged for it
        assert isinstance(outcome, Retry)
        assert "locked" in outcome.reason
        assert consumer.process(RECEIVED) == Processed()
        assert keys_done(engine) == ["k"]


def commit(_: Message, session: Session) -> None:
    session.commit()


def roll_back(_: Message, session: Session) -> None:
    session.rollback()


def commit_the_connection(_: Message, session: Session) -> None:
    session.connection().commit()


def commit_in_sql(_: Message, session: Session) -> None:
    session.execute(sa.text("COMMIT"))


@EVERYWHERE
@pytest.mark.parametrize("misstep", [commit, roll_back, commit_the_connection, commit_in_sql])
def test_a_handler_that_ends_the_transaction_keeps_nothing(engine: Engine, form: str, misstep: Work) -> None:
    metadata.create_all(engine)
    consumer = FORMS[form](engine, once(misstep))
    outcomes = [consumer.process(RECEIVED) for _ in range(2)]
    assert isinstance(outcomes[0], Retry)
    assert outcomes[1] == Processed()
    assert keys_done(engine) == ["k", "k"]


@EVERYWHERE
def test_a_commit_behind_the_strategy_s_back_is_never_called_done(engine: Engine, form: str) -> None:
    # Given a handler that commits on the driver's own connection, where nobody can prevent it
    def commit_on_the_driver(_: Message, session: Session) -> None:
        driver = session.connection().connection.dbapi_connection
        assert driver is not None
        driver.commit()

    metadata.create_all(engine)
    outcome: Outcome = FORMS[form](engine, once(commit_on_the_driver)).process(RECEIVED)
    # Then an operator is asked: part of the effect may be durable
    assert isinstance(outcome, Park)
    assert keys_done(engine) == ["k"]
