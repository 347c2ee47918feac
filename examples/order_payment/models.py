"""The tables of the four services. They share one database here; each could have its own."""

import sqlalchemy as sa

metadata = sa.MetaData()

#: The payment service's: the business row that a message tells of.
payment = sa.Table(
    "payment",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    # An order is paid once, whoever asks twice.
    sa.Column("order_number", sa.Integer, nullable=False, unique=True),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("sku", sa.String(20), nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("method", sa.String(20), nullable=False),
    sa.Column("cents", sa.Integer, nullable=False),
)

#: The stock service's: what is left, and why it is no more than that.
stock = sa.Table(
    "stock",
    metadata,
    sa.Column("sku", sa.String(20), primary_key=True),
    sa.Column("delivered", sa.Integer, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.CheckConstraint("quantity >= 0", name="stock_is_never_oversold"),
)
stock_ledger = sa.Table(
    "stock_ledger",
    metadata,
    sa.Column("payment_id", sa.String(32), primary_key=True),
    sa.Column("sku", sa.String(20), primary_key=True),
    sa.Column("kind", sa.String(10), primary_key=True),
    sa.Column("quantity", sa.Integer, nullable=False),
)

#: The points service's: one row for each payment, so that a second one is refused.
points = sa.Table(
    "points",
    metadata,
    sa.Column("payment_id", sa.String(32), primary_key=True),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("points", sa.Integer, nullable=False),
)

#: The reconciliation's: running totals, in which a second effect of one message would show for ever.
totals = sa.Table(
    "reconciliation",
    metadata,
    sa.Column("method", sa.String(20), primary_key=True),
    sa.Column("payments", sa.Integer, nullable=False),
    sa.Column("cents", sa.BigInteger, nullable=False),
)

SKUS = ("anvil", "bellows", "crucible")
METHODS = ("card", "transfer", "wallet")
#: Enough for many runs on one database.
DELIVERED = 10_000_000


def create(engine: sa.Engine) -> None:
    """Creates the tables, with goods in stock and totals of nothing; a second time changes nothing."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        if connection.execute(sa.select(stock.c.sku)).first() is None:
            goods = [{"sku": sku, "delivered": DELIVERED, "quantity": DELIVERED} for sku in SKUS]
            connection.execute(stock.insert(), goods)
            connection.execute(totals.insert(), [{"method": method, "payments": 0, "cents": 0} for method in METHODS])
