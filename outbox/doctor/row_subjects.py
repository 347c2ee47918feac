"""What is looked at of the outbox itself: its rows and who listens."""

from typing import Final

from outbox.doctor.findings import Subject

ORIGIN: Final = Subject(
    "origin",
    "the database's identity is missing or not unique, so no half can be told from those of others",
    "leave one row in outbox_database; for a copy draw a new one with `outbox db adopt`",
)
ROWS_LATE: Final = Subject(
    "rows-late",
    "rows are due and nobody publishes them, or too few do",
    "see whether a relay runs and what its log says",
)
ROWS_OLD: Final = Subject(
    "rows-old",
    "these rows were added long ago and are tried in vain",
    "read their reason: `outbox list --state pending`, `outbox show ID`",
)
ROWS_UNSETTLED: Final = Subject(
    "rows-unsettled",
    "the database has decided these rows, and for long the look-up could not tell, or the broker refused the commit",
    "read the relay's log for `cannot tell` and `denied`; bring the master back that holds their halves",
)
ROWS_DEAD: Final = Subject(
    "rows-dead",
    "these messages are given up, and kept",
    "mend the cause, then `outbox requeue`; where the outcome is unknown, look for the message first",
)
ROWS_OTHER_GROUP: Final = Subject(
    "rows-other-group",
    "committed rows name another producer group than OUTBOX_GROUP: it was changed, or another service writes here",
    "nothing, if it was changed: listeners serve these groups until the rows are settled",
)
LISTENER_HEARTBEAT: Final = Subject(
    "listener-heartbeat",
    "no listener has said lately that it answers checks, so halves whose relay died wait for a lease, or are given up",
    "run `outbox relay` (without --no-checkback) or `outbox checkback`",
)
