"""Runs a consumer from start to stop: what ``outbox consume`` calls."""

import logging
import threading
from collections.abc import Callable, Collection

from outbox.brokers.source import Source
from outbox.consumer.runner import Runner, RunnerSettings
from outbox.consumer.strategy import Strategy
from outbox.errors import SettingsError

log = logging.getLogger(__name__)

#: Opens a consumer group's view of some topics.
OpenSource = Callable[[Collection[str], str], Source]

PURGE_EVERY = 60.0
_NEEDED = ("topics", "group", "check", "process", "park", "purge", "close")


def run(
    target: Strategy,
    open_source: OpenSource,
    stop: threading.Event,
    *,
    group: str | None = None,
    settings: RunnerSettings | None = None,
    purge_every: float = PURGE_EVERY,
) -> None:
    """Consumes the target's topics under ``group`` (None: the target's own) until ``stop`` is set.

    Purges every ``purge_every`` seconds, also while busy. Raises ``SettingsError`` or ``SchemaError`` before anything
    is received if the target is no consumer or cannot work.
    """
    missing = [name for name in _NEEDED if not hasattr(target, name)]
    if missing:
        raise SettingsError(f"{target!r} is not a consumer (no {', '.join(missing)}); name an outbox.consumer.Inbox")
    target.check()
    group = group or target.group
    source = open_source(target.topics, group)
    purger = threading.Thread(target=_purge, args=(target, stop, purge_every), name="outbox-purge", daemon=True)
    log.info("consuming %s as group %s", ", ".join(target.topics), group)
    try:
        purger.start()
        Runner(source, target, settings).run(stop)
    finally:
        stop.set()
        purger.join()
        source.close()
        target.close()
    log.info("group %s stopped", group)


def _purge(target: Strategy, stop: threading.Event, every: float) -> None:
    """Batches follow each other without a rest while there is something old."""
    while not stop.wait(every):
        try:
            purged = 0
            while not stop.is_set() and (batch := target.purge()):
                purged += batch
            if purged:
                log.info("retention: %d effects forgotten", purged)
        except Exception:
            log.exception("retention failed; the next round tries again")
