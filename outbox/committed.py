"""Tells somebody in this process that a session's transaction with new rows is committed."""

import logging
from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session

_log = logging.getLogger("outbox")


class AfterCommit:
    """Calls back, in the committing thread, after the outermost commit of each session that was named since its last.

    A call too many is possible (rows that were rolled back before a later commit), a missing one is not. What the
    callback raises is logged: the commit has happened.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def of(self, session: Session) -> None:
        """Waits for this session's next commit."""
        if self not in session.info:
            event.listen(session, "after_commit", self._committed)
        session.info[self] = True

    def _committed(self, session: Session) -> None:
        if session.in_nested_transaction() or not session.info[self]:
            return
        session.info[self] = False
        try:
            self._callback()
        except Exception:  # noqa: BLE001 -- the caller's commit must not fail for it
            _log.exception("wake failed; the rows are committed, and a relay finds them by polling")
