"""The stock service: ``Inbox`` (C1), since its effect is in the database.

Run it with ``outbox consume examples.order_payment.stock:inbox``.
"""

import os

from sqlalchemy.orm import Session

from examples.order_payment.models import stock, stock_ledger
from examples.order_payment.service import TAG, TOPIC
from outbox.consumer import Duplicate, Inbox, Message, Permanent, Processed, ledger_entry

inbox = Inbox(os.environ["OUTBOX_DATABASE_URL"], consumer="stock")


@inbox.handler(topic=os.environ.get("PAYMENTS_TOPIC", TOPIC), tag=TAG)
def on_paid(message: Message, session: Session) -> None:
    """Deducts what was paid for.

    Inbox row, ledger entry and deduction commit together. The inbox forgets a key after its retention; the ledger
    keeps the payment as long as the business wants, so even a replay from last year deducts nothing.
    """
    paid = message.json()
    entry = {"payment_id": paid["payment_id"], "sku": paid["sku"], "kind": "sold", "quantity": paid["quantity"]}
    said = ledger_entry(session, stock_ledger, entry, unique=("payment_id", "sku", "kind"))
    if isinstance(said, Duplicate):
        return
    if not isinstance(said, Processed):
        raise Permanent(said.reason)
    session.execute(
        stock.update().where(stock.c.sku == paid["sku"]).values(quantity=stock.c.quantity - paid["quantity"])
    )
