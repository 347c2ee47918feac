"""The load: orders are paid while processes die and events are sent a second time."""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from examples.crew import Crew
from examples.order_payment.models import METHODS, SKUS, payment
from examples.order_payment.service import CardDeclined, Order, PaymentService
from examples.resender import Resender

#: Who is killed, in turn.
VICTIMS = ("relay", "stock", "points", "reconciliation", "relay", "checkback")
#: One attempt in so many is declined, on top of those that are paid.
DECLINED = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    orders: int
    kills: int
    duplicates: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Plan":
        """The plan that the command line asks for."""
        return cls(options.orders, options.kills, options.duplicates)

    def strikes(self) -> dict[int, str]:
        """After how many orders who is killed."""
        every = max(1, self.orders // (self.kills + 1))
        return {every * (number + 1): VICTIMS[number % len(VICTIMS)] for number in range(self.kills)}


@dataclass(slots=True)
class Injected:
    """What was done to the system."""

    paid: int = 0
    declined: int = 0
    duplicates: int = 0


class Load:
    """Pays the orders of a plan; the same orders in each run."""

    def __init__(self, plan: Plan, engine: sa.Engine, service: PaymentService, crew: Crew, again: Resender) -> None:
        self._plan = plan
        self._engine = engine
        self._service = service
        self._crew = crew
        self._again = again

    def run(self) -> Injected:
        """Pays, kills, repeats; returns when the last order is paid, not when the last effect is there."""
        injected, strikes = Injected(), self._plan.strikes()
        tenth = max(1, self._plan.orders // 10)
        for order in self._orders():
            self._service.pay(order)
            injected.paid += 1
            if injected.paid % DECLINED == 0:
                injected.declined += self._declined(order)
            if victim := strikes.get(injected.paid):
                self._crew.strike(victim)
            if injected.paid % tenth == 0 or injected.paid == self._plan.orders:
                due = self._plan.duplicates * injected.paid // self._plan.orders
                injected.duplicates += self._again.send(due - injected.duplicates)
        return injected

    def _orders(self) -> Iterator[Order]:
        """Numbers go on from what an earlier run on this database has paid."""
        draw = random.Random(7)
        with self._engine.connect() as connection:
            last = connection.execute(sa.select(sa.func.max(payment.c.order_number))).scalar() or 0
        for number in range(last + 1, last + 1 + self._plan.orders):
            customer = f"customer-{draw.randrange(100)}"
            yield Order(
                number, customer, draw.choice(SKUS), draw.randrange(1, 4), draw.choice(METHODS), draw.randrange(10_000)
            )

    def _declined(self, order: Order) -> int:
        """Writes payment and message like any other, and rolls back: nobody must ever hear of it."""
        try:
            self._service.pay(Order(-order.order_number, "nobody", order.sku, 1, order.method, 1), declined=True)
        except CardDeclined:
            return 1
        raise AssertionError("a declined payment was taken")
