"""Where a SQL strategy's work is done: in the caller's thread, or on an event loop for an ``AsyncEngine``.

The strategies are written once, synchronously. On a loop they run inside SQLAlchemy's greenlet, from which the driver's
coroutines, and the handler's own, are awaited; the caller's thread waits meanwhile, so that how many handlers run at
once stays the runner's setting.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util.concurrency import await_only, greenlet_spawn

from outbox.consumer.forks import anew_in_children

P = ParamSpec("P")
R = TypeVar("R")

Handler = Callable[..., Any]


class Bridge(Protocol):
    """From the caller's thread to where the engine can be used."""

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the work returns, or raises."""
        ...

    def adapted(self, handler: Handler) -> Handler:
        """The handler as the work calls it: synchronously."""
        ...

    def close(self) -> None:
        """Frees what ``run`` needs."""
        ...


class Direct:
    """A plain engine: no bridge is needed."""

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Here and now."""
        return work(*args, **kwargs)

    def adapted(self, handler: Handler) -> Handler:
        """As it is."""
        return handler

    def close(self) -> None:
        """Nothing."""


class OnLoop:
    """An event loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._begin()
        anew_in_children(self._begin)

    def _begin(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """On the loop; this thread waits. An exit or a cancellation inside ends this call alone, not the loop."""
        box: list[R] = []
        failed: list[BaseException] = []

        async def guarded() -> None:
            """Ends well, whatever the work raises."""
            try:
                box.append(await greenlet_spawn(partial(work, *args, **kwargs)))
            except BaseException as error:  # noqa: BLE001 -- raised again in the caller's thread
                failed.append(error)

        asyncio.run_coroutine_threadsafe(guarded(), self._started()).result()
        if failed:
            raise failed[0]
        return box[0]

    def adapted(self, handler: Handler) -> Handler:
        """Coroutines are awaited, and see the asynchronous form of what a handler is given."""

        is_async = is_coroutine(handler)

        def call(message: object, given: object) -> object:
            returned = handler(message, as_async(given) if is_async else given)
            return await_only(returned) if is_async else returned

        return call

    def close(self) -> None:
        """Ends the loop; what still runs on it is not waited for."""
        with self._starting:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="outbox-loop", daemon=True).start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def is_coroutine(handler: Handler) -> bool:
    """Whether it is ``async def``, or an object that is called so, with or without arguments of its own beforehand."""
    handler = _bare(handler)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def named(handler: Handler) -> str:
    """What its author calls it; of an object its class."""
    handler = _bare(handler)
    return str(getattr(handler, "__name__", type(handler).__name__))


def _bare(handler: Handler) -> Handler:
    while isinstance(handler, partial):
        handler = handler.func
    return handler


class AsyncLease:
    """A ``FencedLease`` as a coroutine uses it: ``async with lease.transaction() as session``."""

    def __init__(self, lease: Any) -> None:
        self._lease = lease

    @property
    def token(self) -> int:
        """One more with each claim of the key."""
        return int(self._lease.token)

    @property
    def held(self) -> bool:
        """Whether nobody else can have claimed the key, by our own clock."""
        return bool(self._lease.held)

    def check(self) -> None:
        """Raises ``LeaseLost`` unless the lease is held."""
        self._lease.check()

    def transaction(self) -> "AsyncTransaction":
        """The transaction that makes the effect durable, once; at the end of the work."""
        return AsyncTransaction(self._lease.transaction())


class AsyncTransaction:
    """A synchronous transaction, entered and left from a coroutine."""

    def __init__(self, transaction: AbstractContextManager[Session]) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> AsyncSession:
        return session_of(await greenlet_spawn(self._transaction.__enter__))

    async def __aexit__(self, *error: Any) -> bool | None:
        return await greenlet_spawn(self._transaction.__exit__, *error)


def as_async(given: object) -> object:
    """What a coroutine is given in place of a session or a lease with a transaction."""
    if isinstance(given, Session):
        return session_of(given)
    return AsyncLease(given) if hasattr(given, "transaction") else given


def session_of(session: Session) -> AsyncSession:
    """The same session with the asynchronous interface."""
    return AsyncSession(sync_session_class=lambda **_: session)  # type: ignore[arg-type]
