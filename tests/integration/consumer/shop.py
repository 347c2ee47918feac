"""A consumer with effects that can be counted; tests and their child processes share it."""

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outbox.brokers.source import Delivery
from outbox.columns import ExactText
from outbox.consumer import Inbox, InProgress, Message, Outcome
from outbox.consumer.schema import inbox as inbox_table
from outbox.consumer.schema import parked
from tests.waiting import expect_soon

metadata = sa.MetaData()
#: Without a unique key: an effect that happens twice shows.
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("consumer", ExactText(100), nullable=False),
    sa.Column("key", ExactText(400), nullable=False),
    mysql_engine="InnoDB",
)
stock = sa.Table(
    "stock",
    metadata,
    sa.Column("sku", ExactText(20), primary_key=True),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.CheckConstraint("quantity >= 0", name="ck_stock_quantity"),
    mysql_engine="InnoDB",
)

Step = Callable[[Message, Session], object]


def record(message: Message, session: Session, consumer: str = "stock") -> None:
    """One effect."""
    session.execute(effects.insert().values(consumer=consumer, key=message.key))


def shop(database: str | Engine | AsyncEngine, step: Step = record, **settings: object) -> Inbox:
    """An inbox with one handler for the topic payments."""
    inbox = Inbox(database, **{"consumer": "stock", **settings})  # type: ignore[arg-type]
    inbox.handler(topic="payments")(step)
    return inbox


def until_free(inbox: Inbox, received: Delivery, *busy: type[Outcome]) -> Outcome:
    """The outcome once nobody holds the key: a server lets go of what a dead connection held a moment later.

    ``busy``: outcomes that say so besides ``InProgress``.
    """
    outcomes: list[Outcome] = []

    def is_free() -> bool:
        outcomes.append(inbox.process(received))
        return not isinstance(outcomes[-1], (InProgress, *busy))

    expect_soon(is_free, "its key is free")
    return outcomes[-1]


def keys_done(engine: Engine, consumer: str = "stock") -> list[str]:
    """The keys of all effects, repeats included."""
    with engine.connect() as connection:
        query = sa.select(effects.c.key).where(effects.c.consumer == consumer).order_by(effects.c.key)
        return list(connection.execute(query).scalars())


def effects_in_order(engine: Engine, consumer: str = "stock") -> list[str]:
    """The keys of all effects in the order in which they were written."""
    with engine.connect() as connection:
        query = sa.select(effects.c.key).where(effects.c.consumer == consumer).order_by(effects.c.id)
        return list(connection.execute(query).scalars())


def rows(engine: Engine) -> int:
    """How many inbox rows there are."""
    with engine.connect() as connection:
        return count(connection, inbox_table)


def reasons(engine: Engine) -> list[str]:
    """Why messages were parked, in order."""
    with engine.connect() as connection:
        return list(connection.execute(sa.select(parked.c.reason).order_by(parked.c.id)).scalars())


def count(connection: Connection, table: sa.Table) -> int:
    """Rows of a table."""
    return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
