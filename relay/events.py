"""What the relay did, as facts: the loops report here, one class turns the facts into log lines.

Each method is called after its fact, in the thread that learned it. A subclass must not raise and not block.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Final

from outbox.flood import SECONDS, Flood, Kind
from outbox.shown import cause
from outbox.store.attempt import Attempt

#: Lines about single rows of one topic, of one kind, in ``SECONDS``.
_ROWS: Final = 50


class Events:
    """Documented no-ops; override what interests you."""

    def claimed(self, attempts: Collection[Attempt]) -> None:
        """Rows were leased for a pass, or none was due."""

    def decided(self, committed: int, lost: int) -> None:
        """A pass was decided: halves chosen, and stored halves that were not."""

    def settled(self, delivered: int, unconfirmed: int) -> None:
        """The broker's answers to the commits of a pass were written."""

    def refused(self, attempt: Attempt, reason: str, *, buried: bool) -> None:
        """The broker said no to a row."""

    def unknown(self, attempt: Attempt, reason: str) -> None:
        """A half may or may not be stored; the row was given back."""

    def outage(self, reason: str, pause: float) -> None:
        """The broker is away; no row is charged for it, and the next claim waits ``pause`` seconds."""

    def recovered(self) -> None:
        """The broker took a message again after an outage; passes are full from now on."""

    def partial_outage(self, rows: int, reason: str) -> None:
        """These rows wait, others go on: a topic without a route, one broker of several. None is charged."""

    def undecided(self, rows: int, error: BaseException) -> None:
        """The database's answer to a decision is missing; neither COMMIT nor ROLLBACK was sent."""

    def unsettled(self, rows: int, error: BaseException) -> None:
        """The database did not take what the broker confirmed; the reconciler finds these messages visible."""

    def lease_lost(self, rows: int) -> None:
        """The leases of a pass were over before its decision; its halves are left to the check-back."""

    def released(self, rows: int) -> None:
        """Rows that were claimed when the relay was told to stop were given back unsent."""

    def claim_failed(self, error: BaseException) -> None:
        """The database let no row be claimed; it is tried again."""

    def work_failed(self, name: str, error: BaseException) -> None:
        """The database did not let scheduled work (``reconcile``, ``purge``, …) be done; it is done again."""

    def reconciled(self, row_id: int, what: str) -> None:
        """A committed row whose lease was over was put right, or could not be yet."""

    def purged(self, rows: int) -> None:
        """Retention deleted rows."""

    def woken(self, row_ids: Sequence[int]) -> None:
        """The sweep found lanes that did not go on; these rows are next."""

    def set_back(self, rows: int) -> None:
        """The database's clock was set back; these rows no longer wait until it says once more what it said before."""


class LogEvents(Events):
    """Facts as log lines: what an operator must act on is a warning or an error.

    What happens to very many rows is told of the first ones, and then counted: rows know their reasons themselves.
    """

    def __init__(self, logger: logging.Logger, flood: Flood | None = None) -> None:
        self._log = logger
        self._flood = flood or Flood()
        self._claims_fail = False

    def claimed(self, attempts: Collection[Attempt]) -> None:
        """Debug, where there are any; and what was left out of the log, since a relay claims all the time."""
        if attempts:
            self._log.debug("claimed rows=%d", len(attempts))
        if self._claims_fail:
            self._claims_fail = False
            self._log.warning("the database takes claims again")
        for (level, words), left_out in self._flood.ended().items():
            self._log.log(level, "%s: %d more lines like this were left out within %.0f s", words, left_out, SECONDS)

    def decided(self, committed: int, lost: int) -> None:
        """Debug."""
        self._log.debug("decided committed=%d lost=%d", committed, lost)

    def settled(self, delivered: int, unconfirmed: int) -> None:
        """Debug, or information where an answer is missing."""
        level = logging.INFO if unconfirmed else logging.DEBUG
        self._log.log(level, "settled delivered=%d unconfirmed=%d", delivered, unconfirmed)

    def refused(self, attempt: Attempt, reason: str, *, buried: bool) -> None:
        """Warning, or error where the row is dead."""
        level = logging.ERROR if buried else logging.WARNING
        said = "dead; requeue it with `outbox requeue` once the cause is gone" if buried else "tried again later"
        kind, facts = (level, f"refused topic={attempt.topic}: {said}"), (attempt.row_id, attempt.topic, reason, said)
        self._of_many(kind, "refused row=%d topic=%s reason=%s: %s", *facts)

    def unknown(self, attempt: Attempt, reason: str) -> None:
        """Information."""
        kind, facts = (logging.INFO, f"unknown topic={attempt.topic}"), (attempt.row_id, attempt.topic, reason)
        self._of_many(kind, "unknown row=%d topic=%s reason=%s", *facts)

    def outage(self, reason: str, pause: float) -> None:
        """Warning."""
        self._log.warning("outage pause=%.1f reason=%s", pause, reason)

    def recovered(self) -> None:
        """Warning, as the outage."""
        self._log.warning("the broker is back")

    def partial_outage(self, rows: int, reason: str) -> None:
        """Warning."""
        kind = (logging.WARNING, f"outage reason={reason}")
        self._of_many(kind, "outage rows=%d reason=%s", rows, reason, most=1)

    def undecided(self, rows: int, error: BaseException) -> None:
        """Warning."""
        self._log.warning("undecided rows=%d error=%s", rows, cause(error))

    def unsettled(self, rows: int, error: BaseException) -> None:
        """Warning."""
        self._log.warning("unsettled rows=%d, looked up once their leases are over: %s", rows, cause(error))

    def lease_lost(self, rows: int) -> None:
        """Warning."""
        self._log.warning("lease lost rows=%d: raise OUTBOX_LEASE if this repeats", rows)

    def released(self, rows: int) -> None:
        """Information."""
        self._log.info("released rows=%d", rows)

    def claim_failed(self, error: BaseException) -> None:
        """Warning, once in ``SECONDS`` of an outage, and one when it is over."""
        self._claims_fail = True
        why = cause(error)
        kind = (logging.WARNING, f"claim failed: {why}")
        self._of_many(kind, "claim failed, the database may be away: %s", why, most=1)

    def work_failed(self, name: str, error: BaseException) -> None:
        """Warning."""
        self._log.warning("%s failed, the database may be away: %s", name, cause(error))

    def reconciled(self, row_id: int, what: str) -> None:
        """Information."""
        self._of_many((logging.INFO, f"reconciled {what}"), "reconciled row=%d %s", row_id, what)

    def purged(self, rows: int) -> None:
        """Information."""
        self._log.info("purged rows=%d", rows)

    def woken(self, row_ids: Sequence[int]) -> None:
        """Information."""
        self._log.info("lanes that did not go on: next rows=%s", row_ids)

    def set_back(self, rows: int) -> None:
        """Warning."""
        self._log.warning("the database's clock was set back: rows=%d that waited for a later time go on", rows)

    def _of_many(self, kind: Kind, text: str, *facts: object, most: int = _ROWS) -> None:
        if (left_out := self._flood.admits(kind, most)) is None:
            return
        if left_out:
            text, facts = f"{text} (%d lines like this were left out within %.0f s)", (*facts, left_out, SECONDS)
        self._log.log(kind[0], text, *facts)
