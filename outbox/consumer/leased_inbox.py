"""``LeasedInbox`` (C3): long handlers under a lease, their database effects fenced by its token."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Unpack

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outbox.consumer import state_table
from outbox.consumer.bridge import Bridge
from outbox.consumer.calling import call
from outbox.consumer.claims import Claim
from outbox.consumer.drivers import opened
from outbox.consumer.errors import HandlerFailed
from outbox.consumer.failures import said
from outbox.consumer.guard import Guard
from outbox.consumer.leased import LeasedExecution
from outbox.consumer.leases import Lease
from outbox.consumer.message import Message
from outbox.consumer.outcome import Outcome
from outbox.consumer.sql_consumer import Options, SqlConsumer
from outbox.consumer.state_table import StateTable


class FencedLease:
    """What a handler of a ``LeasedInbox`` holds."""

    def __init__(self, engine: Engine, claim: Claim, lease: Lease, lock_timeout: float) -> None:
        self._engine = engine
        self._claim = claim
        self._lease = lease
        self._lock_timeout = lock_timeout
        self._guard: Guard | None = None
        self._failed: str | None = None
        self._open = False
        self.finished = False

    @property
    def token(self) -> int:
        """One more with each claim of the key: pass it on to other stores, and have them refuse a lower one."""
        return self._lease.token

    @property
    def held(self) -> bool:
        """Whether nobody else can have claimed the key, by our own clock."""
        return self._lease.held

    def check(self) -> None:
        """Raises ``LeaseLost`` unless the lease is held: call it before each step that cannot be undone."""
        self._lease.check()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """The transaction that makes the effect durable, once, together with the memory of it; at the end of the work.

        Raises ``LeaseLost``, everything undone, if another owner has claimed the key. It must not be ended by hand.
        """
        if self.finished or self._open:
            raise HandlerFailed(
                "lease.transaction() is entered a second time: one transaction makes the effect durable"
            )
        self.check()
        self._open = True
        try:
            with self._transaction() as session:
                yield session
        except BaseException as error:
            self._failed = said(error)
            raise
        finally:
            self._open = False
        self.finished = True

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with opened(self._engine, self._lock_timeout) as connection:
            guard = self._guard = Guard(connection)
            try:
                yield guard.session
                guard.settle()
                state_table.finish(connection, self._claim, self.token)
                guard.commit()
            except BaseException:
                guard.undo()
                raise

    def finish(self) -> None:
        """Remembers a message whose handler wrote nothing here; raises if it swallowed that its effect was undone."""
        if self.finished:
            return
        if self._failed:
            raise HandlerFailed(f"the handler swallowed that lease.transaction() failed ({self._failed}); let it rise")
        with self.transaction():
            pass

    def saw(self, error: Exception) -> bool:
        """Whether it is the transaction's own connection that raised the error."""
        return self._guard is not None and self._guard.saw(error)


Handler = Callable[[Message, FencedLease], object]


class _Table(StateTable):
    """Renewed by the keeper's thread, which has to get to the engine first."""

    def __init__(self, engine: Engine, bridge: Bridge) -> None:
        super().__init__(engine)
        self._bridge = bridge

    def renew(self, claim: Claim, token: int, lease: float) -> bool:
        """Where the engine can be used."""
        return self._bridge.run(super().renew, claim, token, lease)


class LeasedInbox(SqlConsumer):
    """A consumer whose handlers, ``def on_paid(message, lease)``, work as long as they need, one owner at a time.

    The owner's lease (``lease`` seconds, at least twice what a slow handler takes) is renewed at a third while it
    works; one that died is succeeded once it is over. What the handler writes in ``with lease.transaction() as
    session`` happens exactly once per (consumer, key): it commits only if the key is still its own. Everything else
    happens at least once. The row is visible to operators meanwhile: ``done_at`` NULL, its token, its attempts.
    """

    def __init__(
        self, database: Engine | AsyncEngine | str, *, lease: float = 60.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, **options)
        self._execution = LeasedExecution(_Table(self._guarded, self._bridge), lease)

    def _execute(self, message: Message, handler: Handler) -> Outcome:
        claim = Claim.of(self.consumer, message)

        def work(lease: Lease) -> None:
            fenced = FencedLease(self._guarded, claim, lease, self._lock_timeout)
            call(lambda: handler(message, fenced), fenced.saw)
            fenced.finish()

        return self._execution.execute(claim, work)
