"""The library call on real databases, in all four kinds of transactions: one business fact, one row, or none."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from outbox import DuplicateKey, InvalidMessage, NoTransaction, PayloadMismatch
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.store.database import Database
from tests.integration.producers import KINDS, AsyncTransaction, Service, Transaction, application, orders


class Crash(Exception):
    """The service's own failure in the middle of its transaction."""


@pytest.fixture(params=KINDS)
def service(request: pytest.FixtureRequest, migrated_url: str, database: Database) -> Iterator[Service]:
    """A service with a business table, by each kind of transaction."""
    orders.create(database.engine)
    service = Service(migrated_url, request.param)
    yield service
    service.close()


@pytest.fixture
def stored(database: Database) -> Callable[[], tuple[list[int], list[str]]]:
    """The committed business rows, and the keys of the committed outbox rows."""

    def read() -> tuple[list[int], list[str]]:
        with database.transaction() as connection:
            numbers = connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars().all()
            keys = connection.execute(sa.select(outbox.c.key).order_by(outbox.c.id)).scalars().all()
            return list(numbers), list(keys)

    return read


Stored = Callable[[], tuple[list[int], list[str]]]


def test_the_row_appears_with_the_business_row(service: Service, stored: Stored, database: Database) -> None:
    # Given a business transaction / When it commits
    with service.transaction() as transaction:
        transaction.order(1)
        row_id = transaction.add(tag="paid", headers={"trace": "t-1"})
    # Then both rows are there, the message pending
    assert stored() == ([1], ["order-1:paid"])
    with database.transaction() as connection:
        row = connection.execute(sa.select(outbox)).one()
    assert (row.id, row.topic, row.tag, row.payload) == (row_id, "payments", "paid", b'{"order":1}')
    assert (row.state, row.mode, row.headers, row.token) == (State.PENDING, "transactional", {"trace": "t-1"}, None)
    assert (row.attempts, row.failures, row.parked) == (0, 0, False)


def test_nothing_appears_without_the_business_commit(service: Service, stored: Stored) -> None:
    # Given a service that fails between its writes and its commit
    def crash() -> None:
        with service.transaction() as transaction:
            transaction.order(1)
            transaction.add()
            raise Crash

    # When it does / Then neither row is there
    with pytest.raises(Crash):
        crash()
    assert stored() == ([], [])


def test_nobody_sees_the_row_before_the_commit(service: Service, migrated_url: str) -> None:
    other = application(migrated_url)
    with service.transaction() as transaction:
        transaction.order(1)
        transaction.add()
        with other.connect() as connection:
            assert connection.execute(sa.select(sa.func.count()).select_from(outbox)).scalar_one() == 0
    with other.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(outbox)).scalar_one() == 1
    other.dispose()


#: What is added under a key that is taken, and what that is.
AGAIN: list[tuple[dict[str, Any], type[DuplicateKey | PayloadMismatch]]] = [
    ({}, DuplicateKey),
    ({"payload": {"order": 2}}, PayloadMismatch),
    ({"tag": "other"}, PayloadMismatch),
    ({"payload": {"order": 2}, "if_exists": "skip"}, PayloadMismatch),
]


@pytest.mark.parametrize("where", ["the same transaction", "another transaction"])
def test_a_taken_key_is_refused_and_the_transaction_stays_usable(service: Service, stored: Stored, where: str) -> None:
    # Given a key that is taken
    if where == "another transaction":
        with service.transaction() as transaction:
            first = transaction.add()
    with service.transaction() as transaction:
        if where == "the same transaction":
            first = transaction.add()
        # When it is added again
        for number, (fields, expected) in enumerate(AGAIN):
            with pytest.raises(expected) as caught:
                transaction.add(**fields)
            # Then the error names the row, and the transaction goes on
            assert (caught.value.topic, caught.value.key, caught.value.row_id) == ("payments", "order-1:paid", first)
            transaction.order(number)
        transaction.add(key="order-2:paid")
    assert stored() == ([0, 1, 2, 3], ["order-1:paid", "order-2:paid"])


def test_skipping_returns_the_earlier_row(service: Service, stored: Stored) -> None:
    with service.transaction() as transaction:
        first = transaction.add()
    with service.transaction() as transaction:
        transaction.order(1)
        assert transaction.add(if_exists="skip") == first
        transaction.order(2)
    assert stored() == ([1, 2], ["order-1:paid"])


def test_an_invalid_message_leaves_the_transaction_usable(service: Service, stored: Stored) -> None:
    with service.transaction() as transaction:
        transaction.order(1)
        with pytest.raises(InvalidMessage):
            transaction.add(key="k\x01v")
        transaction.order(2)
        transaction.add()
    assert stored() == ([1, 2], ["order-1:paid"])


def undone(transaction: Transaction | AsyncTransaction) -> None:
    with transaction.savepoint():
        transaction.order(2)
        transaction.add(key="undone")
        raise Crash


def test_a_savepoint_takes_its_rows_with_it(service: Service, stored: Stored) -> None:
    with service.transaction() as transaction:
        transaction.order(1)
        transaction.add(key="kept")
        with pytest.raises(Crash):
            undone(transaction)
        with transaction.savepoint():
            transaction.add(key="nested")
        # The key of an undone row is free.
        transaction.add(key="undone", payload={"order": 3})
    assert stored() == ([1], ["kept", "nested", "undone"])


def test_a_duplicate_inside_a_savepoint_spoils_neither(service: Service, stored: Stored) -> None:
    with service.transaction() as transaction:
        transaction.order(1)
        transaction.add()
        with transaction.savepoint():
            with pytest.raises(DuplicateKey):
                transaction.add()
            transaction.order(2)
    assert stored() == ([1, 2], ["order-1:paid"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_autocommit_engine_is_refused(kind: str, migrated_url: str, database: Database, stored: Stored) -> None:
    # Given an engine whose connections commit each statement by themselves
    orders.create(database.engine)
    service = Service(migrated_url, kind, isolation_level="AUTOCOMMIT")
    # When a message is added / Then it is refused, and nothing was written
    with service.transaction() as transaction, pytest.raises(NoTransaction, match="autocommit"):
        transaction.add()
    service.close()
    assert stored() == ([], [])


@pytest.mark.parametrize("kind", KINDS)
def test_autocommit_as_an_execution_option_is_refused(
    kind: str, migrated_url: str, database: Database, stored: Stored
) -> None:
    orders.create(database.engine)
    service = Service(migrated_url, kind, execution_options={"isolation_level": "AUTOCOMMIT"})
    with service.transaction() as transaction, pytest.raises(NoTransaction):
        transaction.add()
    service.close()
    assert stored() == ([], [])


def test_a_start_in_the_future_is_kept_exactly(service: Service, database: Database) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    earlier = datetime.now(UTC) - timedelta(days=1)
    with service.transaction() as transaction:
        transaction.add(key="later", not_before=later)
        transaction.add(key="earlier", not_before=earlier)
    with database.transaction() as connection:
        query = sa.select(outbox.c.key, outbox.c.not_before, outbox.c.available_at, outbox.c.created_at)
        rows = {row.key: row for row in connection.execute(query)}
    assert rows["later"].not_before == rows["later"].available_at == later
    assert rows["earlier"].not_before == earlier
    assert rows["earlier"].available_at == rows["earlier"].created_at
