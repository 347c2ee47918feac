"""A small shop: orders are written with their messages, and a consumer counts the effects.

``python -m tests.acceptance.shop COUNT`` is the producing service; ``tests.acceptance.shop:inbox`` is the consumer.
``SHOP_DATABASE_URL`` and ``SHOP_TOPIC`` say where.
"""

import os
import sys
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox, faults
from outbox.store.database import parsed

metadata = sa.MetaData()
orders = sa.Table("orders", metadata, sa.Column("key", sa.String(100), primary_key=True))
#: No unique key: a second effect of one message would be a second row.
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("key", sa.String(100), nullable=False),
)
#: One business transaction in so many is rolled back.
ROLLED_BACK = 10


def open_engine() -> sa.Engine:
    """The shop's own engine."""
    url = parsed(os.environ["SHOP_DATABASE_URL"])
    timeout = {"timeout": 60} if url.get_backend_name() == "sqlite" else {}
    return sa.create_engine(url, connect_args=timeout)


def produce(engine: sa.Engine, topic: str, count: int, prefix: str = "order") -> None:
    """Writes ``count`` business transactions, a tenth of them rolled back after the message was added."""
    outbox = Outbox(origin="shop")
    for number in range(count):
        with Session(engine) as session, session.begin() as transaction:
            key = f"{prefix}-{number}"
            session.execute(orders.insert().values(key=key))
            outbox.add(session, topic=topic, key=key, payload={"order": number}, tag="paid")
            if number % ROLLED_BACK == 0:
                transaction.rollback()


def _inbox() -> Any:
    from outbox.consumer import Inbox

    inbox = Inbox(open_engine(), consumer="shop")

    @inbox.handler(topic=os.environ["SHOP_TOPIC"])
    def on_paid(message: Any, session: Session) -> None:
        session.execute(effects.insert().values(key=message.key))
        faults.point("consumer.in_handler")

    return inbox


def __getattr__(name: str) -> Any:
    """``inbox`` is made when the consumer asks for it, not when the producer imports the module."""
    if name == "inbox":
        return _inbox()
    raise AttributeError(name)


if __name__ == "__main__":
    produce(open_engine(), os.environ["SHOP_TOPIC"], int(sys.argv[1]))
