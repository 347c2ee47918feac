"""The topics that rows name."""

import sqlalchemy as sa

from outbox.schema import outbox
from outbox.store.database import Database


def named_topics(database: Database) -> frozenset[str]:
    """One step in the index of ``(topic, key)`` for each, however many rows there are."""
    found = [""]
    first = sa.select(sa.func.min(outbox.c.topic))
    with database.transaction() as connection:
        while (topic := connection.execute(first.where(outbox.c.topic > found[-1])).scalar()) is not None:
            found.append(topic)
    return frozenset(found[1:])
