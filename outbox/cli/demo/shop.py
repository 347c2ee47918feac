"""The demo's services: orders are written with their messages, and the stock consumer books each order once."""

import os
import random
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox.consumer import Inbox, Message
from outbox.session import Outbox

TOPIC = "orders"
GROUP = "demo-stock"
metadata = sa.MetaData()
orders = sa.Table("demo_order", metadata, sa.Column("number", sa.Integer, primary_key=True))
#: No unique key, so that a second effect of one message would show.
bookings = sa.Table(
    "demo_booking",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("order_key", sa.String(50), nullable=False),
)


def place_orders(engine: sa.Engine, numbers: range, on_placed: Callable[[], object]) -> int:
    """Writes orders, each with its message in one transaction; a tenth is rolled back. How many were committed."""
    outbox, committed = Outbox(origin="demo"), 0
    for number in numbers:
        with Session(engine) as session, session.begin() as transaction:
            session.execute(orders.insert().values(number=number))
            outbox.add(session, topic=TOPIC, key=f"order-{number}", payload={"order": number, "total": number * 7})
            if number % 10 == 0:
                transaction.rollback()
            else:
                committed += 1
        on_placed()
    return committed


def book(message: Message, session: Session) -> None:
    """The stock service's handler: its write and the inbox row are one transaction."""
    session.execute(bookings.insert().values(order_key=message.key))


def stock() -> Inbox:
    """The stock service."""
    inbox = Inbox(os.environ["OUTBOX_DATABASE_URL"], consumer=GROUP, group=GROUP)
    inbox.handler(topic=TOPIC)(book)
    return inbox


def chosen(keys: list[str], count: int) -> list[str]:
    """Some of the keys, the same ones in each run."""
    return random.Random(7).sample(keys, count)  # noqa: S311 -- a story, not a secret


def __getattr__(name: str) -> Inbox:
    """``inbox`` is made when ``outbox consume`` asks for it, not at import."""
    if name == "inbox":
        return stock()
    raise AttributeError(name)
