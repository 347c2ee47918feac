"""The points service: ``RedisInbox`` (C2), for an effect that no inbox row can share a transaction with.

Run it with ``outbox consume examples.order_payment.points:inbox``.

Redis keeps repeats and rival workers away, but it cannot commit together with the effect: a worker that dies after the
booking and before Redis knows of it leaves a message that is worked on again. At least once, then; what makes it one
is the effect itself, which is keyed by the payment. Without such a key (an e-mail, say) C2 may repeat it, rarely.

Without ``REDIS_URL`` the service uses ``LeasedInbox`` (C3): the same handler under a lease in the database.
"""

import os

from sqlalchemy.orm import Session

from examples.engine import open_engine
from examples.order_payment.models import points
from examples.order_payment.service import TAG, TOPIC
from outbox.consumer import LeasedInbox, Message, Park, Permanent, ledger_entry

#: Seconds: twice what a slow booking takes, and how late the payment of a dead worker is booked.
LEASE = 5.0


engine = open_engine(os.environ["OUTBOX_DATABASE_URL"])

if redis_url := os.environ.get("REDIS_URL"):
    from outbox.consumer.redis_inbox import RedisInbox

    inbox: RedisInbox | LeasedInbox = RedisInbox(redis_url, consumer="points", lease=LEASE)
else:
    inbox = LeasedInbox(os.environ["OUTBOX_DATABASE_URL"], consumer="points", lease=LEASE)


@inbox.handler(topic=os.environ.get("PAYMENTS_TOPIC", TOPIC), tag=TAG)
def on_paid(message: Message, _lease: object) -> None:
    """Books a point for each whole euro; a payment that has its points gets no more of them."""
    paid = message.json()
    entry = {"payment_id": paid["payment_id"], "customer": paid["customer"], "points": paid["cents"] // 100}
    with Session(engine) as session, session.begin():
        said = ledger_entry(session, points, entry, unique=("payment_id",))
        if isinstance(said, Park):
            raise Permanent(said.reason)
