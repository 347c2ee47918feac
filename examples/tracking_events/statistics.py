"""The statistics service: ``BatchInbox`` (C6), since a commit for each page view would cost more than the view.

Run it with ``outbox consume examples.tracking_events.statistics:inbox``.
"""

import os
from collections import Counter
from collections.abc import Sequence

from sqlalchemy.orm import Session

from examples.tracking_events.models import page_views
from examples.tracking_events.website import TOPIC
from outbox.consumer import BatchInbox, Message

inbox = BatchInbox(os.environ["OUTBOX_DATABASE_URL"], consumer="statistics", batch=500)


@inbox.handler(topic=os.environ.get("TRACKING_TOPIC", TOPIC))
def on_views(messages: Sequence[Message], session: Session) -> None:
    """Adds the new ones of a batch to the totals; the repeats among what was delivered are not in ``messages``.

    In the order of the totals' keys: two batches that lock rows in opposite orders would wait for each other.
    """
    events = [message.json() for message in messages]
    views = Counter((event["campaign"], event["page"]) for event in events)
    for (campaign, page), count in sorted(views.items()):
        total = page_views.update().where(page_views.c.campaign == campaign, page_views.c.page == page)
        session.execute(total.values(views=page_views.c.views + count))
