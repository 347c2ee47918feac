"""The web site: writes events into the outbox, for a topic of plain messages."""

import random
import uuid
from collections import Counter
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from examples.tracking_events.models import PAGES
from outbox import Outbox

TOPIC = "tracking"
#: Events in one transaction of the web site: what came in while the last one was written.
TOGETHER = 100


class Website:
    """Tells ``topic`` of every page view of a campaign."""

    def __init__(self, engine: sa.Engine, campaign: str, topic: str) -> None:
        self._engine = engine
        self._campaign = campaign
        self._topic = topic
        self._draw = random.Random(7)
        # One plain send instead of half message and COMMIT: half the work for relay and broker, at least once.
        self._outbox = Outbox(origin="website", plain_topics={topic})
        self.written: Counter[str] = Counter()

    def visits(self, count: int) -> Iterator[int]:
        """Writes so many events; yields how many are written, after each transaction."""
        while (done := self.written.total()) < count:
            self._write([self._draw.choice(PAGES) for _ in range(min(TOGETHER, count - done))])
            yield self.written.total()

    def _write(self, pages: list[str]) -> None:
        with Session(self._engine) as session, session.begin():
            for page in pages:
                # The event's own id, given where it happened, is what tells it from all others.
                event = {"campaign": self._campaign, "page": page}
                self._outbox.add(session, topic=self._topic, key=f"view-{uuid.uuid4().hex}", payload=event)
        self.written.update(pages)
