"""The payment service: the payment and its message are one transaction."""

import uuid
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from examples.order_payment.models import payment
from outbox import Outbox

TOPIC = "payments"
TAG = "paid"


class CardDeclined(Exception):
    """The bank said no, after everything was written."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is paid for."""

    order_number: int
    customer: str
    sku: str
    quantity: int
    method: str
    cents: int


class PaymentService:
    """Takes money; ``topic`` is where it tells of it."""

    def __init__(self, engine: sa.Engine, topic: str = TOPIC) -> None:
        self._engine = engine
        self._topic = topic
        self._outbox = Outbox(origin="payments")

    def pay(self, order: Order, *, declined: bool = False) -> str:
        """Pays an order and returns the payment's id; ``CardDeclined`` leaves neither payment nor message.

        The id is unique in the world, not only in this table, so that no consumer ever takes the payment of another
        database, or of one that was restored, for this one.
        """
        payment_id = uuid.uuid4().hex
        with Session(self._engine) as session, session.begin():
            session.execute(payment.insert().values(id=payment_id, **asdict(order)))
            self._outbox.add(
                session,
                topic=self._topic,
                key=f"payment-{payment_id}",
                payload={"payment_id": payment_id, **asdict(order)},
                tag=TAG,
            )
            if declined:
                raise CardDeclined(f"order {order.order_number}: pay in another way")
        return payment_id
