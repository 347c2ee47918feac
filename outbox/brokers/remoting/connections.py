"""The open connections of one transport, one for each address, dialled on demand with a growing pause."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from outbox.brokers.remoting import frames
from outbox.brokers.remoting.commands import Code, Sign, refusal
from outbox.brokers.remoting.connection import Closed, Connection, OnRequest
from outbox.brokers.remoting.dialling import Dialling, is_name
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.streams import Dial, Stream, dial
from outbox.clock import monotonic

log = logging.getLogger(__name__)

DIAL_TIMEOUT: Final = 3.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


class RemotingError(Exception):
    """A server could not be asked, or did not answer as it should."""


class Away(RemotingError):
    """The server cannot be reached; nothing was written."""


class NoAnswer(RemotingError):
    """The request was written and no answer came in time."""


class Denied(RemotingError):
    """The server answered with a code other than success."""

    def __init__(self, address: str, frame: Frame) -> None:
        super().__init__(f"{address}: {refusal(frame.code, frame.remark)}")
        self.code = frame.code
        self.remark = frame.remark


@dataclass(slots=True)
class _Line:
    """What is known of one address."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Connection | None = None
    #: The last try to reach a host by its name.
    dialling: Dialling | None = None
    failures: int = 0
    #: Moment of ``outbox.clock.monotonic`` before which it is not dialled again.
    resting_until: float = 0.0


def ignore_request(connection: Connection, frame: Frame) -> None:
    """For connections on which the server asks nothing that we answer."""
    log.debug("%s: request %d is not for us", connection.address, frame.code)


class Connections:
    """Connections by address; safe to use from several threads."""

    def __init__(
        self, on_request: OnRequest = ignore_request, *, dialler: Dial = dial, sign: Sign | None = None
    ) -> None:
        self._on_request = on_request
        self._dial = dialler
        self.sign = sign
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._closed = False

    def get(self, address: str, until: float) -> Connection:
        """The connection to ``host:port``, dialled where there is none; ``Away`` where it cannot be had."""
        line = self._lines.get(address)
        connection = None if line is None else line.connection
        if connection is not None and connection.is_open:
            return connection
        with self._lock:
            line = self._lines.setdefault(address, _Line())
        if not line.lock.acquire(timeout=max(0.0, until - monotonic())):
            raise Away(f"{address} is being dialled, and has not answered in time")
        try:
            if line.connection is None or not line.connection.is_open:
                line.connection = self._redial(address, line, until)
            return line.connection
        finally:
            line.lock.release()

    def call(
        self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"", *, timeout: float = DIAL_TIMEOUT
    ) -> Frame:
        """One request and its answer within ``timeout`` seconds; ``Away``, ``NoAnswer``."""
        until = monotonic() + timeout
        connection = self.get(address, until)
        try:
            exchange = connection.open_exchange(1)
        except Closed as problem:
            raise Away(str(problem)) from problem
        connection.send(exchange, [self.request(code, exchange.first, ext, body)], until)
        if exchange.written:
            exchange.wait(until)
        connection.leave(exchange)
        answer = exchange.answers[0]
        if answer is None:
            kind = NoAnswer if exchange.written else Away
            raise kind(f"{address}: no answer to request {code:d} within {timeout:.1f} s")
        return answer

    def ask(
        self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"", *, timeout: float = DIAL_TIMEOUT
    ) -> Frame:
        """As ``call``, and ``Denied`` where the answer is not success."""
        answer = self.call(address, code, ext, body, timeout=timeout)
        if answer.code != Code.SUCCESS:
            raise Denied(address, answer)
        return answer

    def request(self, code: int, opaque: int, ext: Mapping[str, str], body: bytes = b"", *, flag: int = 0) -> bytes:
        """The bytes of one request, signed where that is set up."""
        signed = ext if self.sign is None else self.sign(ext, body)
        return frames.encode(code, opaque, signed, body, flag=flag)

    def close(self) -> None:
        """Ends all connections; later calls are ``Away``."""
        with self._lock:
            self._closed = True
            lines = list(self._lines.values())
        for connection in [line.connection for line in lines if line.connection is not None]:
            connection.close()
            connection.join(DIAL_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: frees the inherited sockets and leaves the parent's connections alone."""
        for line in self._lines.values():
            if line.connection is not None:
                line.connection.abandon()

    def _redial(self, address: str, line: _Line, until: float) -> Connection:
        """Dials, unless the address rests; a connection that ended before it said anything counts as a failure."""
        now = monotonic()
        if self._closed:
            raise Away(f"{address}: the transport is closed")
        if line.connection is not None and not line.connection.has_answered and now > line.resting_until:
            line.connection = None
            self._rest(line, now)
        if now < line.resting_until:
            raise Away(f"{address} is away; it is tried again in {line.resting_until - now:.1f} s")
        try:
            connection = self._dialled(address, line, max(0.05, min(DIAL_TIMEOUT, until - now)))
        except (OSError, ValueError, RuntimeError) as problem:
            self._rest(line, monotonic())
            raise Away(f"{address}: {problem}") from problem
        line.failures = 0
        return connection

    def _dialled(self, address: str, line: _Line, timeout: float) -> Connection:
        """``RuntimeError`` where the system has no thread left for its reader."""
        stream = self._stream(address, line, timeout) if is_name(address) else self._dial(address, timeout)
        try:
            return Connection(address, stream, self._on_request)
        except RuntimeError:
            stream.release()
            raise

    def _stream(self, address: str, line: _Line, timeout: float) -> Stream:
        """To a name: one try at a time, however long its resolution takes."""
        if line.dialling is not None and not line.dialling.is_over:
            raise TimeoutError("its name is still being resolved")
        line.dialling = Dialling(self._dial, address, timeout)
        return line.dialling.stream(timeout)

    @staticmethod
    def _rest(line: _Line, now: float) -> None:
        line.resting_until = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(line.failures, 10))
        line.failures += 1
