"""The inbox row in the handler's own transaction; effects happen once per (consumer, key)."""

from sqlalchemy.engine import Connection, Engine

from outbox.consumer import claims
from outbox.consumer.calling import Handler, call
from outbox.consumer.claims import Claim, Inserted
from outbox.consumer.drivers import begin_anew, begun, limit_lock_waits
from outbox.consumer.failures import outcome_of
from outbox.consumer.guard import guarded
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, InProgress, Outcome, Park, Processed, Retry

_VANISHED = "its inbox row vanished between two statements: it was purged, or written by somebody else"


class RowTransaction:
    """Executes handlers, each in one transaction with the row that says that it was.

    The short form inserts the row as done; a second delivery of an uncommitted key finds it in progress (PostgreSQL)
    or waits for the first (MariaDB/MySQL, SQLite). The long form (``row_lock``) commits the row undone first and keeps
    it locked while the handler works, so that nobody waits; both forms may meet on one key.
    """

    def __init__(self, engine: Engine, consumer: str, *, lock_timeout: float, row_lock: bool) -> None:
        self._engine = engine
        self._consumer = consumer
        self._lock_timeout = lock_timeout
        self._row_lock = row_lock
        #: The last message was a repeat. They come in bursts: after a crash, a reset of offsets, a replay.
        self._follows_repeat = False

    def execute(self, message: Message, handler: Handler) -> Outcome:
        """Claims the message's key, runs the handler and commits; says what became of it and never raises for it."""
        claim = Claim.of(self._consumer, message)
        try:
            if self._row_lock:
                self._reserve(claim)
            return self._transaction(claim, message, handler)
        except Exception as error:  # noqa: BLE001 -- named in the outcome, which the runner logs
            return outcome_of(error)

    def _reserve(self, claim: Claim) -> None:
        with begun(self._engine) as connection:
            claims.insert_undone(connection, claim)
            connection.commit()

    def _transaction(self, claim: Claim, message: Message, handler: Handler) -> Outcome:
        with begun(self._engine) as connection:
            if outcome := self._glimpsed(connection, claim, message):
                return outcome
            inserted = self._insert(connection, claim)
            if inserted is not Inserted.NEW:
                standing = self._standing(connection, claim, inserted)
                self._follows_repeat = isinstance(standing, Duplicate)
                if standing is not None:
                    return standing
            self._run(connection, claim, message, handler, locked=inserted is not Inserted.NEW)
            claims.committed(connection)
        return Processed()

    def _glimpsed(self, connection: Connection, claim: Claim, message: Message) -> Outcome | None:
        """Spares a likely repeat the claim: what is committed decides; None: nothing is, so the claim does."""
        if self._row_lock or not (self._follows_repeat or message.attempt > 1):
            return None
        row = claims.glimpsed(connection, claim)
        self._follows_repeat = row is not None
        if row is None or not row.is_done:
            return None
        reason = row.contradicts(claim)
        return Park(reason) if reason else Duplicate()

    def _insert(self, connection: Connection, claim: Claim) -> Inserted:
        return Inserted.EXISTS if self._row_lock else claims.insert(connection, claim, self._lock_timeout)

    def _standing(self, connection: Connection, claim: Claim, inserted: Inserted) -> Outcome | None:
        """What the key's row says about the claim; None: its effect is not durable, and we hold its lock now."""
        if inserted is Inserted.TAKEN:
            row = claims.conclude(connection, claim)
        else:
            row = claims.earlier(connection, claim) if inserted is Inserted.EXISTS else None
        if row is None:
            return InProgress() if inserted is not Inserted.EXISTS else Retry(_VANISHED)
        if reason := row.contradicts(claim):
            return Park(reason)
        if not row.is_done:
            if inserted is Inserted.TAKEN:
                begin_anew(connection)
            limit_lock_waits(connection, self._lock_timeout)
            row = claims.locked(connection, claim)
        if row is None:
            return InProgress()
        return Duplicate() if row.is_done else None

    @staticmethod
    def _run(connection: Connection, claim: Claim, message: Message, handler: Handler, *, locked: bool) -> None:
        with guarded(connection) as guard:
            call(lambda: handler(message, guard.session), guard.saw)
            guard.settle()
            if locked:
                claims.finish(connection, claim)
            guard.commit()
