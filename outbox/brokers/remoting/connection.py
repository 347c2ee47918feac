"""One connection: writers send whole batches, one reader thread matches answers to the batch that waits for them."""

import logging
import threading
from collections.abc import Callable, Sequence

from outbox.brokers.remoting.frames import RESPONSE, Frame, FrameBuffer, ProtocolError
from outbox.brokers.remoting.streams import Stream
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: A request of the broker, on the connection that it came on; called on the reader thread and must not wait.
OnRequest = Callable[["Connection", Frame], None]

_LAST_OPAQUE = 2**31 - 1
#: Bytes given to the socket at once.
_PIECE = 1024 * 1024


class Closed(Exception):
    """The connection has ended; nothing was written."""


class Exchange:
    """The answers to one batch of requests on one connection: a slot for each, and one signal when all are filled."""

    __slots__ = ("_done", "_on_done", "answers", "first", "left", "written")

    def __init__(self, first: int, count: int, on_done: Callable[[], None] | None) -> None:
        #: Opaque of the first request; the others follow.
        self.first = first
        self.answers: list[Frame | None] = [None] * count
        self.left = count
        #: How many requests left this process, at least in part.
        self.written = 0
        self._done = threading.Lock()
        self._done.acquire()
        self._on_done = on_done

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come: all answers are here, or the connection has ended."""
        return not self._done.locked()

    def finish(self) -> None:
        """Wakes the waiting thread."""
        if self._done.locked():
            self._done.release()
            if self._on_done is not None:
                self._on_done()

    def wait(self, until: float) -> bool:
        """Waits for all answers or the connection's end, until a moment of ``outbox.clock.monotonic``."""
        if not self._done.acquire(timeout=max(0.0, until - monotonic())):
            return False
        self._done.release()
        return True


class Connection:
    """A stream to one server with requests in flight in both directions; safe to use from several threads."""

    def __init__(self, address: str, stream: Stream, on_request: OnRequest) -> None:
        self.address = address
        self._stream = stream
        self._on_request = on_request
        self._registering = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, Exchange] = {}
        self._next = 0
        self._closed = False
        #: Whether the server ever sent a frame.
        self.has_answered = False
        self._reader = threading.Thread(target=self._read, name=f"remoting-{address}", daemon=True)
        self._reader.start()

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return not self._closed

    def open_exchange(self, count: int, on_done: Callable[[], None] | None = None) -> Exchange:
        """Reserves ``count`` successive opaques; ``Closed`` where the connection has ended."""
        with self._registering:
            if self._closed:
                raise Closed(f"{self.address}: the connection has ended")
            if self._next + count > _LAST_OPAQUE:
                self._next = 0
            exchange = Exchange(self._next, count, on_done)
            self._next += count
            self._waiting.update(dict.fromkeys(range(exchange.first, self._next), exchange))
        return exchange

    def send(self, exchange: Exchange, requests: Sequence[bytes], until: float) -> None:
        """Writes the exchange's requests; on a failure closes and leaves in ``exchange.written`` how many had begun.

        Nothing is written after ``until``. Memory: what is sent at once is joined in pieces of about a megabyte.
        """
        if not self._writing.acquire(timeout=max(0.0, until - monotonic())):
            return
        try:
            if monotonic() < until and not self._closed:
                self._write(exchange, requests, until)
        except OSError as problem:
            log.warning("%s: could not write, closing the connection: %s", self.address, problem)
            self.close()
        finally:
            self._writing.release()

    def _write(self, exchange: Exchange, requests: Sequence[bytes], until: float) -> None:
        for start, stop in _pieces(requests):
            piece = memoryview(b"".join(requests[start:stop]))
            sent = 0
            try:
                while sent < len(piece):
                    # Also between two writes: this process may have been stopped meanwhile.
                    if (left := until - monotonic()) <= 0:
                        raise TimeoutError("the time limit passed before everything was written")
                    sent += self._stream.send(piece[sent:], left)
            finally:
                exchange.written = start + _begun(requests[start:stop], sent)

    def notify(self, request: bytes, until: float) -> bool:
        """Writes one request that has no answer; whether it was written."""
        exchange = Exchange(0, 1, None)
        self.send(exchange, [request], until)
        return exchange.written == 1 and not self._closed

    def leave(self, exchange: Exchange) -> None:
        """Stops waiting for the exchange: answers that are still to come are dropped."""
        if exchange.left:
            with self._registering:
                for opaque, answer in enumerate(exchange.answers, exchange.first):
                    if answer is None:
                        self._waiting.pop(opaque, None)

    def close(self) -> None:
        """Ends the connection at once, unsent bytes included; the reader thread frees the rest."""
        self._closed = True
        self._stream.shut()

    def abandon(self) -> None:
        """In a forked child: frees the inherited socket without touching the parent's connection."""
        self._closed = True
        self._stream.release()

    def join(self, timeout: float) -> None:
        """Waits for the reader thread to end."""
        if self._reader is not threading.current_thread():
            self._reader.join(timeout)

    def _read(self) -> None:
        try:
            self._read_frames()
        except ProtocolError as problem:
            log.warning("%s: closing the connection: %s", self.address, problem)
        except OSError as problem:
            log.info("%s: the connection has ended: %s", self.address, problem)
        except Exception:
            log.exception("%s: the reader has failed, closing the connection", self.address)
        finally:
            self._end()

    def _read_frames(self) -> None:
        buffer = FrameBuffer()
        while size := self._stream.receive(buffer.space()):
            for frame in buffer.take(size):
                self.has_answered = True
                if frame.flag & RESPONSE:
                    self._fill(frame)
                else:
                    self._on_request(self, frame)

    def _fill(self, frame: Frame) -> None:
        exchange = self._waiting.pop(frame.opaque, None)
        if exchange is None:
            return
        exchange.answers[frame.opaque - exchange.first] = frame
        exchange.left -= 1
        if not exchange.left:
            exchange.finish()

    def _end(self) -> None:
        """Fails whatever still waits; a request without its answer stays None."""
        with self._registering:
            self._closed = True
            exchanges = set(self._waiting.values())
            self._waiting.clear()
        self._stream.shut()
        self._stream.release()
        for exchange in exchanges:
            exchange.finish()


def _pieces(requests: Sequence[bytes]) -> list[tuple[int, int]]:
    """Bounds of successive slices of ``requests`` of about a megabyte each."""
    bounds, start, size = [], 0, 0
    for index, request in enumerate(requests, 1):
        size += len(request)
        if size >= _PIECE or index == len(requests):
            bounds.append((start, index))
            start, size = index, 0
    return bounds


def _begun(requests: Sequence[bytes], sent: int) -> int:
    """How many of ``requests`` have at least one byte among the first ``sent``."""
    for index, request in enumerate(requests):
        if sent <= 0:
            return index
        sent -= len(request)
    return len(requests)
