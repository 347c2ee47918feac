"""Duplicates: the same business event, sent again under a new message id."""

import random

import sqlalchemy as sa

from outbox.brokers.base import Broker, Outgoing, Sent
from outbox.identity import unique_ids
from outbox.schema import outbox


class Resender:
    """A plain producer that sends events again, under new message ids: an upstream that lost its memory."""

    def __init__(self, engine: sa.Engine, broker: Broker, topic: str, tag: str | None = None) -> None:
        self._engine = engine
        self._broker = broker
        self._topic = topic
        self._tag = tag
        self._draw = random.Random(7)

    def send(self, count: int) -> int:
        """Sends some of the events so far once more; how many the broker has stored."""
        with self._engine.connect() as connection:
            keys = list(connection.execute(sa.select(outbox.c.key).where(outbox.c.topic == self._topic)).scalars())
            chosen = self._draw.sample(sorted(keys), min(count, len(keys)))
            events = sa.select(outbox.c.key, outbox.c.payload).where(outbox.c.key.in_(chosen))
            messages = [
                Outgoing(self._topic, payload, unique_ids.fresh(), key, self._tag)
                for key, payload in connection.execute(events)
            ]
        return sum(isinstance(outcome, Sent) for outcome in self._broker.send(messages, timeout=30))
