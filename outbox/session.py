"""The library call: ``Outbox.add`` writes the message's row in the caller's own transaction."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, overload

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from outbox.committed import AfterCommit
from outbox.errors import NoTransaction
from outbox.message import Message, Mode, encode
from outbox.origin import checked_origin
from outbox.pending import PendingAdds
from outbox.store.insert import insert
from outbox.store.lanes import lane_key, line_up
from outbox.timer import Timer, earliest_of

IfExists = Literal["raise", "skip"]


class Outbox:
    """The producing service's side of the outbox.

    ``origin`` names the service, as ``OUTBOX_ORIGIN`` does for its relay, whose word the messages carry. Rows of
    ``plain_topics`` are published with one plain send (at least once), all others as transactional messages.
    ``lane_lock=False``: transactions that add to one lane do not wait for each other, and the order of its rows is that
    of their inserts, which may not be that of the commits. ``wake`` is called after each commit of a Session or
    AsyncSession that added rows: the ``wake`` of a relay in the same process; it must not block.
    """

    def __init__(
        self,
        origin: str,
        *,
        plain_topics: Collection[str] = (),
        lane_lock: bool = True,
        wake: Callable[[], object] | None = None,
    ) -> None:
        self.origin = checked_origin(origin)
        if isinstance(plain_topics, str):  # a collection too, of letters
            raise TypeError(
                f"plain_topics: {plain_topics!r} is one text: pass a collection, such as {{{plain_topics!r}}}"
            )
        self._plain_topics = frozenset(plain_topics)
        self._lane_lock = lane_lock
        self._after_commit = None if wake is None else AfterCommit(wake)
        self._pending = PendingAdds()

    @overload
    def add(
        self,
        session: Session | Connection,
        *,
        topic: str,
        key: str,
        payload: Any,
        tag: str | None = None,
        lane: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        not_before: datetime | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        if_exists: IfExists = "raise",
    ) -> int: ...

    @overload
    def add(
        self,
        session: AsyncSession | AsyncConnection,
        *,
        topic: str,
        key: str,
        payload: Any,
        tag: str | None = None,
        lane: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        not_before: datetime | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        if_exists: IfExists = "raise",
    ) -> Awaitable[int]: ...

    def add(
        self,
        session: Session | Connection | AsyncSession | AsyncConnection,
        *,
        topic: str,
        key: str,
        payload: Any,
        tag: str | None = None,
        lane: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        not_before: datetime | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        if_exists: IfExists = "raise",
    ) -> int | Awaitable[int]:
        """Adds a message to the caller's transaction and returns its row's id (async sessions: an awaitable of it).

        The row is inserted at once and becomes a message if, and only if, the caller commits. ``key`` is the identity
        of the business fact, unique per topic for as long as the row is kept. ``payload`` is bytes, a pydantic model,
        or anything that JSON can write.

        ``not_before`` (aware), or ``delay`` from now by the database's clock, keeps the row in the outbox until then:
        any length, any topic, and it can be cancelled meanwhile. ``deliver_at`` (aware; RocketMQ 5) or ``delay_level``
        (1 to 18: 1 s to 2 h; RocketMQ 4.9 and 5) hands it to the broker's own timer, which only plain topics can use.

        Messages of one ``lane`` (of one topic) become visible one after another in the order of their rows, in one
        queue; lanes run in parallel. A lane is locked from the first ``add`` to it until the caller's transaction ends,
        so that this order is the order of commits; a transaction that adds to several lanes should do so in one order,
        or it may deadlock with another.

        Raises ``InvalidMessage`` (a limit of RocketMQ; names the field), ``DuplicateKey`` (the same message was added
        before; with ``if_exists="skip"`` the earlier row's id is returned instead), ``PayloadMismatch`` (another
        message has this key), ``NoTransaction`` (the connection is in autocommit). After each of them nothing was
        written and the caller's transaction stays usable. Never commits. A commit of an async session before the
        ``await`` raises ``NotAwaited``.
        """
        if if_exists not in ("raise", "skip"):
            raise ValueError(f"if_exists={if_exists!r}: 'raise' or 'skip'")
        earliest = earliest_of(not_before, delay, deliver_at)
        timer = Timer(deliver_at, delay_level)
        body, natural_type = encode(payload)
        message = Message(
            topic=topic,
            key=key,
            body=body,
            tag=tag,
            content_type=content_type or natural_type,
            headers=dict(headers or {}),
            mode=Mode.PLAIN if topic in self._plain_topics else Mode.TRANSACTIONAL,
            not_before=earliest,
            timer=timer,
            lane=lane,
        )
        self._tell_of(session)
        write = partial(_add, message=message, skip=if_exists == "skip", lane_lock=self._lane_lock)
        if isinstance(session, AsyncSession | AsyncConnection):
            return self._pending.add(session, f"topic {topic!r}, key {key!r}", partial(session.run_sync, write))
        return write(session)

    def _tell_of(self, session: object) -> None:
        if self._after_commit is None:
            return
        session = session.sync_session if isinstance(session, AsyncSession) else session
        if isinstance(session, Session):
            self._after_commit.of(session)


def _add(session: Session | Connection, message: Message, skip: bool, lane_lock: bool) -> int:
    if not isinstance(session, Session | Connection):
        raise TypeError(
            f"session: a Session, Connection, AsyncSession or AsyncConnection, not {type(session).__name__}"
        )
    connection = session.connection() if isinstance(session, Session) else session
    if _commits_by_itself(connection):
        raise NoTransaction(
            "session: its connection is in autocommit, so the row could not share the business transaction: "
            "use a connection without isolation_level='AUTOCOMMIT'"
        )
    if lane_lock and message.lane is not None:
        line_up(connection, lane_key(message.topic, message.lane))
    return insert(connection, message, skip=skip)


def _commits_by_itself(connection: Connection) -> bool:
    """Autocommit as SQLAlchemy or the driver's own attribute tells it; without a question to the server."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    if connection.dialect.name == "sqlite":
        return _sqlite_commits_by_itself(connection)
    driver = connection.connection.dbapi_connection
    autocommit = getattr(driver, "autocommit", None)
    if isinstance(autocommit, bool):
        return autocommit
    ask = getattr(driver, "get_autocommit", None)
    return bool(ask()) if ask else False


def _sqlite_commits_by_itself(connection: Connection) -> bool:
    """Whether no transaction is open and the driver would not open one in front of the INSERT.

    ``isolation_level=None`` alone tells nothing: it is also how SQLAlchemy's users issue BEGIN themselves.
    """
    if not connection.in_transaction():
        connection.begin()  # as the INSERT would; listeners to this event issue their BEGIN now
    driver: Any = connection.connection.driver_connection
    manual = driver.isolation_level is None or getattr(driver, "autocommit", None) is True  # the latter: Python 3.12
    return manual and not driver.in_transaction
