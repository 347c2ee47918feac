"""The reconciliation: ``CachedInbox`` (C5) over ``Inbox``, since it is where repeats of a whole day come to.

Run it with ``outbox consume examples.order_payment.reconciliation:inbox``.

Redis answers for what it knows to be counted, without the database; it never says that something is new. That is the
unique index's word, so a Redis that is flushed or away costs time and no exactness. Without ``REDIS_URL`` the ``Inbox``
works alone, with the same guarantee.
"""

import os

from sqlalchemy.orm import Session

from examples.order_payment.models import totals
from examples.order_payment.service import TAG, TOPIC
from outbox.consumer import Inbox, Message


def count(message: Message, session: Session) -> None:
    """Adds the payment to the totals of its method: a statement that no repeat may reach."""
    paid = message.json()
    more = {"payments": totals.c.payments + 1, "cents": totals.c.cents + paid["cents"]}
    session.execute(totals.update().where(totals.c.method == paid["method"]).values(more))


counted = Inbox(os.environ["OUTBOX_DATABASE_URL"], consumer="reconciliation")
counted.handler(topic=os.environ.get("PAYMENTS_TOPIC", TOPIC), tag=TAG)(count)

if redis_url := os.environ.get("REDIS_URL"):
    from outbox.consumer.cached_inbox import CachedInbox

    inbox: CachedInbox | Inbox = CachedInbox(counted, redis_url)
else:
    inbox = counted
