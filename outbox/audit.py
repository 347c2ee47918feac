"""Compares what the database says with what the broker holds: first row by row, then message by message.

A row is read before the broker is asked about it, and once more before it is called lost; a message is read before its
row. So whatever moves while the audit looks has moved in the direction that explains it, and is not reported.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Final

from outbox.brokers.base import ORIGIN, ROW_ID, Broker, Sought
from outbox.brokers.ledger import CannotTell, Copies, Ledger, Seen, Wanted
from outbox.clock import monotonic
from outbox.lifecycle import State, open_states
from outbox.message import Mode
from outbox.origin import parts_of
from outbox.store.audited import AuditedRow, AuditedRows, Window
from outbox.verdict import Sighting

#: Messages of one look into the database, and halves of one look-up, with the seconds that it may take.
_BATCH: Final = 500
_LOOK_UP: Final = 30.0
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Kind(StrEnum):
    """What an audit finds."""

    #: Delivered, or decided long ago, and no message is visible.
    LOST = "lost"
    #: More than one visible message.
    REPEATED = "repeated"
    #: Still owes a message although it is old, or dead.
    UNFINISHED = "unfinished"
    #: A message of another origin, or of no row.
    FOREIGN = "foreign"
    #: A message of ours that its row says must not be there.
    PHANTOM = "phantom"


class Untold(StrEnum):
    """Why nothing can be said about a row or a message."""

    #: The broker's store does not go back to the decision: the message may have been there.
    EXPIRED = "expired"
    #: No row, and so old that retention has deleted it.
    PURGED = "purged"
    #: The broker's answer proves nothing; the audit is not complete.
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where database and broker disagree."""

    kind: Kind
    topic: str
    key: str
    #: None: the message names no row.
    row: int | None
    unique_id: str | None
    #: The row's; None: there is no such row.
    state: State | None
    detail: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What is compared."""

    since: datetime
    until: datetime
    #: None: all topics of the rows.
    topic: str | None
    #: Open rows added (or due) before this moment are unfinished; those decided before it should be visible.
    overdue_before: datetime
    #: Rows that ended before this moment may have been deleted.
    purged_before: datetime


class Audit:
    """One comparison; ``findings`` once, then the figures."""

    def __init__(
        self,
        rows: AuditedRows,
        broker: Broker,
        ledger: Ledger,
        origin: str,
        scope: Scope,
        expected_origins: Collection[str] = (),
    ) -> None:
        """``origin``: service and database; ``expected_origins``: other services that may write to the topics."""
        self._rows = rows
        self._broker = broker
        self._ledger = ledger
        self._origin = origin
        self._expected_origins = expected_origins
        #: What is compared.
        self.scope = scope
        #: Rows and messages that were looked at, and what could not be told of some.
        self.rows = 0
        self.messages = 0
        #: Messages of the expected origins, among all that were looked at.
        self.expected = 0
        self.untold: Counter[Untold] = Counter()

    def findings(self, last_id: int, progressed: Callable[[str, int], None]) -> Iterator[Finding]:
        """What disagrees, as it is found; ``progressed`` gets a topic ("": the rows) and how far it is there.

        ``CannotTell`` where the broker cannot be asked. Holds a window of rows and a batch of messages at a time.
        """
        scope = self.scope
        topics: set[str] = set()
        owed: set[str] = set()
        for window in self._rows.windows(last_id, scope.since, scope.until, scope.topic):
            topics |= window.topics
            owed |= {row.topic for row in window.rows if self._should_be_visible(row)}
            yield from self._in_window(window)
            progressed("", window.last_id)
        for topic in sorted(topics or self._named()):
            if self._ledger.knows(topic):
                yield from self._in_topic(topic, progressed)
            elif topic in owed:
                raise CannotTell(f"topic {topic}: the broker does not know it; bring back the brokers that had it")

    def _named(self) -> set[str]:
        """The topic that is asked for and has no row; ``CannotTell`` where the broker has nothing of it either."""
        topic = self.scope.topic
        if topic is not None and not self._ledger.exists(topic):
            raise CannotTell(f"--topic {topic}: neither a row nor the broker knows it; correct the name")
        return set() if topic is None else {topic}

    def _in_window(self, window: Window) -> Iterator[Finding]:
        self.rows += len(window.rows)
        owed = [row for row in window.rows if self._should_be_visible(row)]
        copies = self._ledger.copies([_wanted(row) for row in owed])
        unseen: list[tuple[AuditedRow, Copies]] = []
        for row, found in zip(owed, copies, strict=True):
            own = [seen for seen in found.messages if self._row_id(seen) == row.id and seen.key == row.key]
            if len(own) > 1:
                yield _of_row(Kind.REPEATED, row, f"{len(own)} visible messages: {_places(own)}")
            elif own and not found.complete:
                self.untold[Untold.UNCLEAR] += 1
            if not any(_is_winner(row, seen) for seen in own):
                unseen.append((row, found))
        lost = list(self._lost(unseen))
        yield from lost
        yield from self._unfinished(window.rows, {finding.row for finding in lost})

    def _lost(self, unseen: Sequence[tuple[AuditedRow, Copies]]) -> Iterator[Finding]:
        """Those whose absence is proved, and whose row says the same as before."""
        absent = dict(self._absent_by_look_up([row for row, _ in unseen if row.half is not None]))
        absent |= dict(self._absent_by_index([it for it in unseen if it[0].half is None]))
        now = self._rows.by_ids(row.id for row in absent) if absent else {}
        for row, detail in absent.items():
            if (again := now.get(row.id)) is not None and (again.state, again.half) == (row.state, row.half):
                yield _of_row(Kind.LOST, row, detail)

    def _absent_by_look_up(self, rows: Sequence[AuditedRow]) -> Iterator[tuple[AuditedRow, str]]:
        sought = [Sought(row.half, row.decided_at or row.created_at) for row in rows if row.half is not None]
        for row, sighting in zip(rows, self._broker.find(sought, monotonic() + _LOOK_UP), strict=True):
            if sighting is Sighting.ABSENT:
                yield row, "no visible message has the unique id of its half"
            elif sighting is Sighting.EXPIRED:
                self.untold[Untold.EXPIRED] += 1
            elif sighting is Sighting.CANNOT_TELL:
                self.untold[Untold.UNCLEAR] += 1

    def _absent_by_index(self, unseen: Sequence[tuple[AuditedRow, Copies]]) -> Iterator[tuple[AuditedRow, str]]:
        """Rows without a half (plain messages): the index has nothing, and the store goes back far enough."""
        oldest = {topic: self._ledger.oldest(topic) for topic in {row.topic for row, _ in unseen}}
        for row, found in unseen:
            back_to = oldest[row.topic]
            if not found.complete or back_to is None:
                self.untold[Untold.UNCLEAR] += 1
            elif back_to > row.created_at:
                self.untold[Untold.EXPIRED] += 1
            else:
                yield row, "the message index has neither its key nor its unique id"

    def _unfinished(self, rows: Sequence[AuditedRow], lost: set[int | None]) -> Iterator[Finding]:
        for row in rows:
            due = max(row.created_at, row.not_before or row.created_at)
            if row.state in open_states() and row.id not in lost and due < self.scope.overdue_before:
                yield _of_row(Kind.UNFINISHED, row, f"waits since {due.isoformat(timespec='seconds')}")
            elif row.state is State.DEAD:
                yield _of_row(Kind.UNFINISHED, row, f"somebody has to decide: outbox show {row.id}")

    def _should_be_visible(self, row: AuditedRow) -> bool:
        if row.state is State.DELIVERED:
            return True
        return row.state is State.COMMITTED and (row.decided_at or row.created_at) < self.scope.overdue_before

    def _in_topic(self, topic: str, progressed: Callable[[str, int], None]) -> Iterator[Finding]:
        messages = self._ledger.messages(topic, self.scope.since, self.scope.until)
        looked_at = 0
        while batch := list(islice(messages, _BATCH)):
            yield from self._in_batch(batch)
            looked_at += len(batch)
            progressed(topic, looked_at)
        self.messages += looked_at

    def _in_batch(self, batch: Sequence[Seen]) -> Iterator[Finding]:
        ids = {row_id for seen in batch if (row_id := self._row_id(seen)) is not None}
        rows = self._rows.by_ids(ids) if ids else {}
        for seen in batch:
            row_id = self._row_id(seen)
            if row_id is None:
                yield from self._of_another(seen)
            elif (row := rows.get(row_id)) is None:
                yield from self._without_row(seen, row_id)
            elif (row.topic, row.key) != (seen.topic, seen.key):
                yield _of_message(Kind.FOREIGN, seen, row_id, row, f"the row is about key {row.key} of {row.topic}")
            elif (why := _phantom(row, seen)) is not None:
                yield _of_message(Kind.PHANTOM, seen, row_id, row, why)

    def _of_another(self, seen: Seen) -> Iterator[Finding]:
        """No other service has this database's id, so a message under it is never an expected one."""
        service, database = parts_of(seen.properties.get(ORIGIN, ""))
        own_service, own_database = parts_of(self._origin)
        if database == own_database and service != own_service:
            why = f"{_whose(seen)}; this is the database's own id: is OUTBOX_ORIGIN, now {own_service}, right?"
            yield _of_message(Kind.FOREIGN, seen, None, None, why)
        elif service in self._expected_origins and seen.properties[ORIGIN] != self._origin:
            self.expected += 1
        else:
            yield _of_message(Kind.FOREIGN, seen, None, None, _whose(seen))

    def _without_row(self, seen: Seen, row_id: int) -> Iterator[Finding]:
        if seen.stored_at < self.scope.purged_before:
            self.untold[Untold.PURGED] += 1
        else:
            yield _of_message(Kind.FOREIGN, seen, row_id, None, "there is no such row")

    def _row_id(self, seen: Seen) -> int | None:
        """The row that a message of our origin names; None: another origin, or no row's id."""
        row_id = seen.properties.get(ROW_ID, "")
        if seen.properties.get(ORIGIN) != self._origin or not (row_id.isascii() and row_id.isdigit()):
            return None
        return int(row_id) if len(row_id) < 19 else None


def _wanted(row: AuditedRow) -> Wanted:
    return Wanted(row.topic, row.key, row.unique_id, row.created_at)


def _is_winner(row: AuditedRow, seen: Seen) -> bool:
    """Whether this is the row's message; a plain row that was sent again keeps the unique id of one of them only."""
    return row.mode is Mode.PLAIN or row.unique_id in (None, seen.unique_id)


def _phantom(row: AuditedRow, seen: Seen) -> str | None:
    """Why the message should not be there; None: it may.

    A dead row's own message may be there: that its outcome was unknown is what made the row dead.
    """
    if row.state is State.CANCELLED:
        return "its row was cancelled"
    if row.state is not State.DEAD and row.mode is Mode.PLAIN:
        return None
    if row.unique_id == seen.unique_id:
        return None
    return "its row has no winner" if row.unique_id is None else f"the row's winner is {row.unique_id}"


def _whose(seen: Seen) -> str:
    origin = seen.properties.get(ORIGIN)
    return "no origin" if origin is None else f"origin {origin}, row {seen.properties.get(ROW_ID, 'not named')}"


def _places(own: Sequence[Seen]) -> str:
    return ", ".join(f"{seen.unique_id} at {seen.place}" for seen in own)


def _of_row(kind: Kind, row: AuditedRow, detail: str) -> Finding:
    return Finding(kind, row.topic, row.key, row.id, row.unique_id, row.state, detail)


def _of_message(kind: Kind, seen: Seen, row_id: int | None, row: AuditedRow | None, why: str) -> Finding:
    state = None if row is None else row.state
    return Finding(kind, seen.topic, seen.key, row_id, seen.unique_id, state, f"{why}; visible at {seen.place}")


def scope_of(
    now: datetime, since: datetime, until: datetime, topic: str | None, older_than: float, retention: float
) -> Scope:
    """The scope of an audit at ``now``, by the database's clock; ``older_than`` and ``retention`` in seconds."""
    return Scope(since, until, topic, before(now, older_than), before(now, retention))


def before(moment: datetime, seconds: float) -> datetime:
    """``seconds`` earlier, and not before 1970, however long that is."""
    return moment - timedelta(seconds=min(seconds, (moment - _BEGINNING).total_seconds()))
