"""The count: what the payments call for, beside what the three consumers did."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from examples.order_payment.models import payment, points, stock, totals
from outbox.lifecycle import open_states
from outbox.schema import outbox


@dataclass(frozen=True, slots=True)
class Line:
    """One figure."""

    service: str
    what: str
    expected: int
    seen: int

    def __str__(self) -> str:
        verdict = "exact" if self.expected == self.seen else f"WRONG by {self.seen - self.expected:+,}"
        return f"{self.service:15} {self.what:20} expected {self.expected:12,}  seen {self.seen:12,}  {verdict}"


@dataclass(frozen=True, slots=True)
class Report:
    """All figures at one moment, and how many messages are still owed."""

    lines: tuple[Line, ...]
    unpublished: int

    @property
    def exact(self) -> bool:
        """Whether every payment had each effect once."""
        return not self.unpublished and all(line.expected == line.seen for line in self.lines)

    @property
    def surplus(self) -> bool:
        """Whether an effect happened twice: no waiting can mend that."""
        return any(line.seen > line.expected for line in self.lines)


def report(engine: sa.Engine) -> Report:
    """Counts everything that was ever paid on this database."""
    with engine.connect() as connection:
        owed = sa.select(sa.func.count()).select_from(outbox).where(outbox.c.state.in_(open_states()))
        return Report(tuple(_lines(connection)), connection.execute(owed).scalar_one())


def _lines(connection: sa.Connection) -> Iterator[Line]:
    paid = connection.execute(sa.select(payment)).all()
    sold, payments, cents = Counter[str](), Counter[str](), Counter[str]()
    for row in paid:
        sold[row.sku] += row.quantity
        payments[row.method] += 1
        cents[row.method] += row.cents
    for row in connection.execute(sa.select(stock).order_by(stock.c.sku)):
        yield Line("stock", f"{row.sku} sold", sold[row.sku], row.delivered - row.quantity)
    booked = [int(value) for value in connection.execute(sa.select(points.c.points)).scalars()]
    yield Line("points", "payments", len(paid), len(booked))
    yield Line("points", "points", sum(row.cents // 100 for row in paid), sum(booked))
    for row in connection.execute(sa.select(totals).order_by(totals.c.method)):
        yield Line("reconciliation", f"{row.method} payments", payments[row.method], row.payments)
        yield Line("reconciliation", f"{row.method} cents", cents[row.method], row.cents)
