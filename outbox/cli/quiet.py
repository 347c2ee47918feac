"""The log of a process whose messages all meet the same fate: the first lines, and how many others there were."""

import logging
from typing import Final

from outbox.flood import SECONDS, Flood

#: Lines of one kind in ``SECONDS``: of what a record says it tells of (``extra={"kind": …}``), or else those that one
#: call writes.
_LINES: Final = 50
#: Whose lines are counted. The relay counts its own, also where it runs inside a service.
_COUNTED: Final = frozenset(("outbox", "checkback"))
_log = logging.getLogger("outbox.cli.quiet")


class Quiet(logging.Filter):
    """For the handler of a daemon; lets pass what is not of the toolkit, and all of level debug."""

    def __init__(self, flood: Flood | None = None) -> None:
        super().__init__()
        self._flood = flood or Flood()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; what was left out is told with the next line, whosever it is."""
        if record.name == _log.name:
            return True
        for (level, words), lines in self._flood.ended().items():
            _log.log(level, "%s: %d more lines like this were left out within %.0f s", words, lines, SECONDS)
        if record.levelno <= logging.DEBUG or record.name.partition(".")[0] not in _COUNTED:
            return True
        left_out = self._flood.admits((record.levelno, getattr(record, "kind", record.msg)), _LINES)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} lines like this were left out within {SECONDS:.0f} s)"
            record.args = ()
        return left_out is not None
