"""One producer object of the native client: started at its first call, shut down once, never used after that."""

import ctypes
import itertools
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from outbox.brokers.base import BrokerClosed, Outgoing, Unknown
from outbox.brokers.native.content import BODY_MAX, properties_of
from outbox.brokers.native.library import QueueSelector, SendResult, log_folder
from outbox.brokers.native.quiet import wait_until_quiet
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: The number of the queue, given how many the client knows.
Choose = Callable[[int], int]
#: Milliseconds for one answer. A call can take longer: it may ask for the route and dial first.
_ANSWER: Final = 3000
#: Bodies are never compressed: what is stored is what was added.
_NEVER: Final = 2**31 - 1
#: ``CLogLevel`` E_LOG_LEVEL_WARN.
_LOG_LEVEL: Final = 3
#: Wire attempts beyond the first: a half that is sent again inside the client would be two halves.
_REPEATS: Final = 0
#: ``CSendStatus`` E_SEND_OK.
_STORED: Final = 0
#: Seconds after the start for the client's first heartbeat (after 10 ms). It must find no broker to dial: a message
#: that is sent while the heartbeat dials fails at once.
_FIRST_HEARTBEAT: Final = 0.15
#: Seconds that ``close`` gives calls that are under way; dialling and asking for a route takes at most half of it.
_PATIENCE: Final = 30.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who signs requests to brokers with access control."""

    access_key: str
    secret_key: str


class Producer:
    """Sends messages, each by one blocking call of one wire attempt; safe to use from several threads.

    The library crashes the interpreter when a producer is used after or during its shutdown, and hangs for ever at
    the end of a process that has not shut it down. So calls and shutdown exclude each other here, and a producer that
    nobody closed is shut down when it is dropped, or when the interpreter ends.
    """

    def __init__(self, library: Any, name_servers: str, group: str, credentials: Credentials | None = None) -> None:
        self._library = library
        self._settings = (name_servers, group, credentials)
        self._process = os.getpid()
        self._pointer: int | None = None
        self._calls = 0
        self._closed = False
        self._state = threading.Condition()
        self._tickets = itertools.count(1)
        self._choices = choices = dict[int, Choose]()
        # Kept here: the client calls it for as long as a call lasts, and it must not raise.
        self._selector = QueueSelector(lambda queues, _message, ticket: choices[ticket](queues) % queues)

    def send(self, message: Outgoing, properties: Mapping[str, str], choose: Choose) -> int | Unknown:
        """The queue offset of the stored message; ``BrokerClosed`` after ``close``.

        ``properties``: beside those of the message; ``choose``: the queue. Whatever else happens is ``Unknown``: the
        client says neither what the broker answered nor whether anything was written ("no route info" stands for all).
        """
        result, ticket = SendResult(), next(self._tickets)
        self._choices[ticket] = choose
        try:
            with self._call() as pointer, self._content(message, properties) as content:
                arguments = (self._selector, ticket, _REPEATS, ctypes.byref(result))
                code = self._library.SendMessageOrderly(pointer, content, *arguments)
        finally:
            del self._choices[ticket]
        if code != 0 or result.status != _STORED:
            return Unknown(f"the native client says no more than that it failed; its log in {log_folder()} may say why")
        return int(result.queue_offset)

    def close(self) -> None:
        """Shuts down once no call is under way; a second call does nothing."""
        with self._state:
            self._closed = True
            if not self._state.wait_for(lambda: self._calls == 0, _PATIENCE):
                log.error("%d calls of the native client do not end: it is left running", self._calls)
                return
            if self._pointer is not None:
                self._finalizer()
                self._pointer = None

    @contextmanager
    def _call(self) -> Iterator[int]:
        """Counts a call; the first one starts the client."""
        with self._state:
            if self._closed:
                raise BrokerClosed(f"the connection of group {self._settings[1]} is closed: open a new one")
            if self._pointer is None:
                self._pointer = self._start()
            self._calls += 1
            pointer = self._pointer
        try:
            yield pointer
        finally:
            with self._state:
                self._calls -= 1
                self._state.notify_all()

    def _start(self) -> int:
        """A running producer under an instance name of its own, so that several live side by side in one process."""
        name_servers, group, credentials = self._settings
        lib = self._library
        pointer: int = lib.CreateProducer(group.encode())
        lib.SetProducerNameServerAddress(pointer, name_servers.encode())
        lib.SetProducerInstanceName(pointer, f"{os.getpid()}-{secrets.token_hex(4)}".encode())
        lib.SetProducerSendMsgTimeout(pointer, _ANSWER)
        lib.SetProducerMaxMessageSize(pointer, BODY_MAX)
        lib.SetProducerCompressMsgBodyOverHowmuch(pointer, _NEVER)
        lib.SetProducerLogLevel(pointer, _LOG_LEVEL)
        if credentials is not None:
            keys = (credentials.access_key.encode(), credentials.secret_key.encode())
            lib.SetProducerSessionCredentials(pointer, *keys, b"")
        began = monotonic()
        if lib.StartProducer(pointer) != 0:
            raise RuntimeError(f"group {group}: the native client does not start: {lib.GetLatestErrorMessage()!r}")
        self._finalizer = weakref.finalize(self, _shut_down, (began, monotonic()), lib, pointer, self._process)
        time.sleep(_FIRST_HEARTBEAT)
        return pointer

    @contextmanager
    def _content(self, message: Outgoing, properties: Mapping[str, str]) -> Iterator[int]:
        """The client's own copy of the message, freed at the end."""
        lib = self._library
        content: int = lib.CreateMessage(message.topic.encode())
        try:
            lib.SetByteMessageBody(content, message.body, len(message.body))
            for name, value in properties_of(message, properties).items():
                lib.SetMessageProperty(content, name.encode(), value.encode())
            yield content
        finally:
            lib.DestroyMessage(content)


def _shut_down(started: tuple[float, float], library: Any, pointer: int, process: int) -> None:
    """Ends the client's threads. A forked child has none, and waiting for them would be for ever."""
    if os.getpid() == process:
        wait_until_quiet(*started)
        library.ShutdownProducer(pointer)
