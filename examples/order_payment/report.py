"""The count: what the payments call for, beside what the three consumers did."""

from collections import Counter
from collections.abc import Iterator

import sqlalchemy as sa

from examples.counting import Line, Report, unpublished
from examples.order_payment.models import payment, points, stock, totals


def report(engine: sa.Engine) -> Report:
    """Counts everything that was ever paid on this database."""
    with engine.connect() as connection:
        return Report(tuple(_lines(connection)), unpublished(connection))


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
