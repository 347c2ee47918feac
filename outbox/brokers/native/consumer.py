"""One push consumer of the native client: started once, shut down once."""

import os
import secrets
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

from outbox.brokers.native.library import MessageCallback
from outbox.brokers.native.producer import Credentials
from outbox.brokers.native.quiet import wait_until_quiet
from outbox.clock import monotonic

#: ``CLogLevel`` E_LOG_LEVEL_WARN.
_LOG_LEVEL: Final = 3
#: ``CTraceModel`` OPEN and CLOSE.
_TRACED: Final = 0
_NOT_TRACED: Final = 1
_EVERYTHING: Final = b"*"

#: Called with consumer and message, by threads of the client.
OnMessage = Callable[[int, int], int]


class PushConsumer:
    """Pulls for its group and calls back, until it is closed, dropped, or the interpreter ends.

    The library hangs for ever at the end of a process that has not shut it down, and its shutdown waits for the
    callbacks: ``release`` must see to it that they return.
    """

    def __init__(self, library: Any, on_message: OnMessage, release: Callable[[], None]) -> None:
        self._library = library
        self._callback = MessageCallback(on_message)
        self._release = release
        self._finalizer: Callable[[], object] = release

    def start(
        self, name_servers: str, group: str, topics: Collection[str], threads: int, credentials: Credentials | None
    ) -> None:
        """Begins to pull, under an instance name of its own, so that several members live in one process."""
        lib = self._library
        pointer: int = lib.CreatePushConsumer(group.encode())
        lib.SetPushConsumerNameServerAddress(pointer, name_servers.encode())
        lib.SetPushConsumerInstanceName(pointer, f"{os.getpid()}-{secrets.token_hex(4)}".encode())
        lib.SetPushConsumerThreadCount(pointer, threads)
        lib.SetPushConsumerLogLevel(pointer, _LOG_LEVEL)
        # The shutdown of 2.1 wants the producer of traces, which only a start with tracing makes, or ends the process
        # by SIGSEGV; nothing is traced once it has started.
        lib.SetPushConsumerMessageTrace(pointer, _TRACED)
        if credentials is not None:
            keys = (credentials.access_key.encode(), credentials.secret_key.encode())
            lib.SetPushConsumerSessionCredentials(pointer, *keys, b"")
        for topic in topics:
            lib.Subscribe(pointer, topic.encode(), _EVERYTHING)
        lib.RegisterMessageCallback(pointer, self._callback)
        began = monotonic()
        if lib.StartPushConsumer(pointer) != 0:
            raise RuntimeError(f"group {group}: the native client does not start: {lib.GetLatestErrorMessage()!r}")
        lib.SetPushConsumerMessageTrace(pointer, _NOT_TRACED)
        arguments = (lib, pointer, self._callback, self._release, os.getpid())
        self._finalizer = weakref.finalize(self, _shut_down, (began, monotonic()), *arguments)

    def close(self) -> None:
        """Has callbacks return, and ends the client's threads; a second call does nothing."""
        self._finalizer()


def _shut_down(
    started: tuple[float, float],
    library: Any,
    pointer: int,
    _callback: object,
    release: Callable[[], None],
    process: int,
) -> None:
    """Keeps the callback alive until no thread can call it. A forked child has no threads to wait for."""
    if os.getpid() == process:
        release()
        wait_until_quiet(*started)
        library.ShutdownPushConsumer(pointer)
