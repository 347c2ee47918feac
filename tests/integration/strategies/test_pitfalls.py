"""Naive consumers that fail where the other files show none; each beside what ours makes of the same."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outbox.consumer import Duplicate, Message, Processed, Retry
from outbox.consumer.schedule import RETRY_DELAYS
from outbox.store.database import Database
from tests.integration.consumer.shop import effects, keys_done, metadata, shop, stock
from tests.unit.consumer.fakes import delivery

Step = Callable[[Connection], object]
MARK = "INSERT INTO seen VALUES ('k')"


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """PostgreSQL, with the naive consumers' table."""
    with request.getfixturevalue("postgresql_copies")(tmp_path) as url:
        database = Database(url)
        metadata.create_all(database.engine)
        with database.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE seen (k TEXT PRIMARY KEY)")
            connection.execute(stock.insert().values(sku="a", quantity=10))
        yield database.engine
        database.close()


def effect(connection: Any) -> None:
    connection.execute(effects.insert().values(consumer="stock", key="k"))


def deduct(connection: Any) -> None:
    connection.execute(stock.update().values(quantity=stock.c.quantity - 1))


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.select(stock.c.quantity)).scalar_one())


def test_a_violation_that_nobody_catches_sends_every_repeat_to_the_dead_letters(engine: Engine) -> None:
    # Given the naive consumer: the key goes into a table with a unique index, and errors rise
    def naive() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(MARK)
            effect(connection)

    naive()
    # When the message comes again, as often as the broker tries
    for _ in RETRY_DELAYS:
        with pytest.raises(IntegrityError):
            naive()
    # Then it is never acknowledged, while ours knows it the first time
    ours, received = shop(engine, consumer="ours"), delivery(keys=("k",))
    assert [ours.process(received), ours.process(received)] == [Processed(), Duplicate()]


def test_a_mark_in_a_transaction_of_its_own_repeats_the_effect(engine: Engine) -> None:
    # Given the naive consumer that works, commits, and then marks; it dies in between
    def naive(dies: bool) -> None:
        with engine.begin() as connection:
            if connection.exec_driver_sql("SELECT 1 FROM seen WHERE k = 'k'").first():
                return
            effect(connection)
        if dies:
            raise SystemExit(9)
        with engine.begin() as connection:
            connection.exec_driver_sql(MARK)

    with pytest.raises(SystemExit):
        naive(dies=True)
    # When the message comes again / Then it takes effect again
    naive(dies=False)
    assert keys_done(engine) == ["k", "k"]


def test_a_retry_of_what_was_half_done_deducts_twice(engine: Engine) -> None:
    # Given the naive handler: stock in one transaction, the shipment in the next, which fails at first
    failures = iter([True, False])

    def naive() -> None:
        with engine.begin() as connection:
            deduct(connection)
        if next(failures):
            raise ConnectionError("the carrier does not answer")

    with pytest.raises(ConnectionError):
        naive()
    # When the message comes again / Then the stock is two less for one order
    naive()
    assert left(engine) == 8


def test_a_retry_deducts_once(engine: Engine) -> None:
    # Given the same handler in the inbox's transaction
    failures = iter([True, False])

    def ours(_: Message, session: Session) -> None:
        deduct(session)
        if next(failures):
            raise ConnectionError("the carrier does not answer")

    inbox, received = shop(engine, ours), delivery(keys=("k",))
    # When it comes until it is known / Then the stock is one less
    assert isinstance(inbox.process(received), Retry)
    assert left(engine) == 10
    assert [inbox.process(received), inbox.process(received)] == [Processed(), Duplicate()]
    assert left(engine) == 9


def test_a_key_without_its_consumer_starves_the_second_one(engine: Engine) -> None:
    # Given the naive table, which knows the key and not who has worked on it
    def naive(consumer: str) -> str:
        with engine.begin() as connection:
            if connection.exec_driver_sql(f"{MARK} ON CONFLICT DO NOTHING").rowcount == 0:
                return "duplicate"
            connection.execute(effects.insert().values(consumer=consumer, key="k"))
            return "done"

    # When stock and points both get the message / Then points never have it
    assert [naive("stock"), naive("points")] == ["done", "duplicate"]
    assert keys_done(engine, "points") == []
