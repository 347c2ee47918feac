"""How long the inbox remembers, and how it forgets."""

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from outbox.consumer.drivers import begun
from outbox.consumer.schedule import RETRY_DELAYS
from outbox.consumer.schema import inbox
from outbox.store.clock import utc_after, utc_now

log = logging.getLogger(__name__)

HOUR = 3600.0
#: ``fileReservedTime``: what the broker keeps, and again what it keeps of the dead-letter topic, in seconds.
BROKER_RETENTION = 72 * HOUR
#: A message may come again for this long: kept by the broker, retried to the end, kept as a dead letter.
SHORTEST_RETENTION = BROKER_RETENTION + sum(RETRY_DELAYS) + BROKER_RETENTION
RETENTION = 7 * 24 * HOUR
BATCH = 500


def outlived(born_at: float | None, retention: float, now: float) -> str | None:
    """Why a message (sent at ``born_at``, seconds since 1970) is too old to be told from a repeat; None: it is not.

    Its effect may be there and forgotten. The clocks of producer and consumer may differ; what is wrongly taken for
    too old is parked and can be replayed.
    """
    if born_at is None or now - born_at <= retention:
        return None
    return f"sent {(now - born_at) / HOUR:.0f} h ago, longer than effects are remembered ({retention / HOUR:.0f} h)"


def warn_if_short(retention: float) -> None:
    """Logs a retention (seconds) after which the broker may still deliver a message whose effect is forgotten."""
    if retention < SHORTEST_RETENTION:
        log.warning(
            "retention: %.0f h is shorter than the %.0f h for which the broker may deliver a message again (file "
            "retention, all retries, dead letters): a late repeat would take effect twice",
            retention / HOUR,
            SHORTEST_RETENTION / HOUR,
        )


def purge(engine: Engine, consumer: str, older_than: float, limit: int = BATCH) -> int:
    """Deletes up to ``limit`` effects that are older than ``older_than`` seconds, the oldest first; how many.

    Rows that somebody else holds are left alone, so that cleaners and consumers never wait for each other. An undone
    row belongs to the message that left it, and goes once nobody works on it and the broker cannot deliver that again.
    """
    effects = (inbox.c.done_at < utc_after(-older_than), inbox.c.done_at)
    lease_over = sa.or_(inbox.c.lease_until.is_(None), inbox.c.lease_until < utc_now())
    forgotten = inbox.c.received_at < utc_after(-max(older_than, SHORTEST_RETENTION))
    left = (sa.and_(inbox.c.done_at.is_(None), forgotten, lease_over), inbox.c.received_at)
    return _deleted(engine, consumer, *effects, limit) or _deleted(engine, consumer, *left, limit)


def _deleted(engine: Engine, consumer: str, which: sa.ColumnElement[bool], since: sa.Column[Any], limit: int) -> int:
    """The first of these rows, by the moment ``since``."""
    old = sa.select(inbox.c.key).where(inbox.c.consumer == consumer, which).order_by(since, inbox.c.key)
    with begun(engine) as connection:
        keys: list[Any] = sorted(connection.execute(old.limit(limit).with_for_update(skip_locked=True)).scalars())
        if keys:
            connection.execute(inbox.delete().where(inbox.c.consumer == consumer, inbox.c.key.in_(keys)))
        connection.commit()
    return len(keys)
