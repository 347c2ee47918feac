"""Idempotent business statements on real databases: what "0 rows" means, and what the naive code makes of it."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outbox.columns import ExactText
from outbox.consumer import (
    BusinessConsumer,
    Duplicate,
    Message,
    Outcome,
    Park,
    Processed,
    Retry,
    at_version,
    ledger_entry,
    transition,
)
from tests.integration.consumer.shop import stock
from tests.unit.consumer.fakes import delivery

metadata = sa.MetaData()
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("status", ExactText(20), nullable=False),
    sa.Column("payment_id", sa.Integer),
    sa.Column("version", sa.Integer, nullable=False, server_default="0"),
    mysql_engine="InnoDB",
)
taken = sa.Table(
    "taken",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("order_id", sa.Integer, nullable=False),
    sa.Column("sku", ExactText(20), nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("serial", sa.Integer, unique=True),
    sa.UniqueConstraint("order_id", "sku", name="uq_taken"),
    mysql_engine="InnoDB",
)

Handler = Callable[[Message, Session], object]
Process = Callable[[Handler], Outcome]


@pytest.fixture
def process(engine: Engine) -> Iterator[Process]:
    """Processes one message with a handler over an order 1 that is CREATED at version 3, and 10 apples."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(orders.insert().values(id=1, status="CREATED", version=3))
        connection.execute(stock.insert().values(sku="apple", quantity=10))

    def once(handler: Handler) -> Outcome:
        consumer = BusinessConsumer(engine, consumer="shop")
        consumer.handler(topic="payments")(handler)
        return consumer.process(delivery())

    yield once
    metadata.drop_all(engine)


def paid(payment: int, order: int = 1) -> Handler:
    """The order is paid for."""
    return lambda _, session: transition(
        session,
        orders,
        {"id": order},
        column="status",
        source="CREATED",
        target="PAID",
        mark={"payment_id": payment},
        earlier=("DRAFT",),
    )


def changed(version: int) -> Handler:
    """A change of the order."""
    return lambda _, session: at_version(
        session, orders, {"id": 1}, version=version, values={"status": f"CHANGED {version}"}
    )


def take(quantity: int, **other: object) -> Handler:
    """Apples are taken for order 1, once."""

    def on_paid(_: Message, session: Session) -> object:
        entry = {"order_id": 1, "sku": "apple", "quantity": quantity, **other}
        said = ledger_entry(session, taken, entry, unique=("order_id", "sku"))
        if isinstance(said, Processed):
            session.execute(stock.update().values(quantity=stock.c.quantity - quantity))
        return said

    return on_paid


def order(engine: Engine, *columns: str) -> tuple[object, ...]:
    with engine.connect() as connection:
        return tuple(connection.execute(sa.select(*(orders.c[name] for name in columns))).one())


def apples(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.select(stock.c.quantity)).scalar_one())


def force(engine: Engine, **values: object) -> None:
    with engine.begin() as connection:
        connection.execute(orders.update().values(**values))


def test_a_move_is_made_once_and_its_repeat_known(engine: Engine, process: Process) -> None:
    assert [process(paid(17)), process(paid(17))] == [Processed(), Duplicate()]
    assert order(engine, "status", "payment_id") == ("PAID", 17)


def test_the_repeat_of_a_move_is_known_when_the_row_has_moved_on(engine: Engine, process: Process) -> None:
    process(paid(17))
    force(engine, status="SHIPPED")
    assert process(paid(17)) == Duplicate()
    assert order(engine, "status") == ("SHIPPED",)


def test_a_move_that_comes_too_early_comes_again(engine: Engine, process: Process) -> None:
    force(engine, status="DRAFT")
    assert isinstance(process(paid(17)), Retry)
    assert isinstance(process(paid(17, order=2)), Retry)
    assert order(engine, "status") == ("DRAFT",)


def test_a_move_that_contradicts_what_happened_is_parked(engine: Engine, process: Process) -> None:
    # Given an order that was paid for
    process(paid(17))
    # When it is paid for by another payment, and when it is cancelled instead / Then a person has to look
    outcome = process(paid(18))
    assert isinstance(outcome, Park)
    assert "'PAID'" in outcome.reason
    force(engine, status="CANCELLED", payment_id=None)
    assert isinstance(process(paid(17)), Park)


def test_the_naive_acknowledgement_of_no_rows_loses_payments(engine: Engine, process: Process) -> None:
    # Given the naive handler, to which "0 rows" means "there already"
    def naive(_: Message, session: Session) -> object:
        session.execute(orders.update().where(orders.c.id == 1, orders.c.status == "CREATED").values(status="PAID"))
        return Processed()

    # When the payment overtakes the order's creation / Then it is acknowledged, and lost
    force(engine, status="DRAFT")
    assert process(naive) == Processed()
    assert order(engine, "status") == ("DRAFT",)


def test_changes_are_applied_in_their_order_each_once(engine: Engine, process: Process) -> None:
    # Given an order at version 3 / When a later change overtakes the next / Then it waits for it
    assert isinstance(process(changed(5)), Retry)
    assert [process(changed(number)) for number in (4, 5)] == [Processed(), Processed()]
    # And repeats of both are known
    assert [process(changed(number)) for number in (5, 4, 1)] == [Duplicate()] * 3
    assert order(engine, "status", "version") == ("CHANGED 5", 5)


def test_an_effect_behind_a_ledger_row_happens_once(engine: Engine, process: Process) -> None:
    assert [process(take(3)), process(take(3))] == [Processed(), Duplicate()]
    assert apples(engine) == 7


def test_an_effect_that_fails_leaves_no_ledger_row(engine: Engine, process: Process) -> None:
    # Given more apples than there are: the table's own CHECK refuses
    outcome = process(take(11))
    assert isinstance(outcome, Retry)
    assert apples(engine) == 10
    # When there are enough / Then the effect takes place
    with engine.begin() as connection:
        connection.execute(stock.update().values(quantity=11))
    assert process(take(11)) == Processed()


def test_another_fact_under_the_same_ledger_key_is_parked(engine: Engine, process: Process) -> None:
    process(take(3))
    outcome = process(take(4))
    assert isinstance(outcome, Park)
    assert "another quantity" in outcome.reason
    assert apples(engine) == 7


def test_a_violation_of_another_constraint_is_no_repeat(engine: Engine, process: Process) -> None:
    # Given a serial number that another order's entry has
    with engine.begin() as connection:
        connection.execute(taken.insert().values(order_id=9, sku="apple", quantity=1, serial=5))
    # When ours comes with the same one / Then it is no duplicate, and nothing is lost
    outcome = process(take(3, serial=5))
    assert isinstance(outcome, Retry)
    assert outcome.reason.startswith("IntegrityError")
    assert apples(engine) == 10


def test_taking_every_integrity_error_for_a_repeat_loses_messages(engine: Engine, process: Process) -> None:
    # Given the same, and the naive handler
    with engine.begin() as connection:
        connection.execute(taken.insert().values(order_id=9, sku="apple", quantity=1, serial=5))

    def naive(_: Message, session: Session) -> object:
        try:
            with session.begin_nested():
                session.execute(taken.insert().values(order_id=1, sku="apple", quantity=3, serial=5))
        except IntegrityError:
            return Duplicate()
        return Processed()

    # When it runs / Then the message is acknowledged without an effect
    assert process(naive) == Duplicate()
    with engine.connect() as connection:
        assert connection.execute(sa.select(taken.c.order_id)).scalars().all() == [9]


def test_what_is_not_processed_leaves_nothing_behind(engine: Engine, process: Process) -> None:
    def wrote_and_gave_up(_: Message, session: Session) -> object:
        session.execute(stock.update().values(quantity=0))
        return Retry("not now")

    assert process(wrote_and_gave_up) == Retry("not now")
    assert apples(engine) == 10


def test_a_handler_that_says_nothing_is_told_what_to_return(engine: Engine, process: Process) -> None:
    outcome = process(lambda _, session: session.execute(stock.update().values(quantity=0)))
    assert isinstance(outcome, Retry)
    assert "return Processed, Duplicate, Retry or Park" in outcome.reason
    assert apples(engine) == 10
