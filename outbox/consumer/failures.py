"""From an exception to an outcome."""

import logging
from traceback import format_tb

from outbox.consumer.drivers import is_outage
from outbox.consumer.errors import CommittedEarly, LostMeanwhile, Permanent, StoreAway
from outbox.consumer.outcome import Outcome, Park, Retry
from outbox.shown import cause
from outbox.store.conflicts import is_conflict

log = logging.getLogger(__name__)


def outcome_of(error: BaseException) -> Outcome:
    """What a failed transaction means for its message.

    Everything is worth a retry, nothing having been kept, except what says itself that it is not: ``Permanent``, and a
    statement that committed half of the work, which only an operator can judge.
    """
    if log.isEnabledFor(logging.DEBUG):  # not ``exc_info``: that shows a statement and what it was given
        log.debug("%s, raised at\n%s", said(error), "".join(format_tb(error.__traceback__)))
    if isinstance(error, Permanent | CommittedEarly):
        return Park(said(error))
    if isinstance(error, LostMeanwhile):
        return Retry(str(error), outage=True, begun=True)
    away = isinstance(error, StoreAway) or is_outage(error)
    return Retry(said(error), outage=away, conflict=is_conflict(error))


def said(error: BaseException) -> str:
    """The error in one line: its class and its first words. Statements and their parameters stay out of it."""
    return f"{type(error).__name__}: {cause(error)}"[:500]
