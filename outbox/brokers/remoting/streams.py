"""Byte streams to a server; ``tls`` has the one that is wrapped."""

import select
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from outbox.clock import monotonic

#: Unsent bytes are dropped when the socket is closed: a COMMIT must not reach the broker after its window.
_DROP_UNSENT = struct.pack("ii", 1, 0)


class Stream(Protocol):
    """An open connection that one thread reads while another one writes."""

    def receive(self, space: memoryview) -> int:
        """Waits for bytes and puts them into ``space``; 0: the stream has ended."""
        ...

    def send(self, content: memoryview, timeout: float) -> int:
        """Gives at least one byte to the system within ``timeout`` seconds; raises ``OSError`` where it cannot."""
        ...

    def shut(self) -> None:
        """Ends both directions and wakes the reader; from any thread, any number of times."""
        ...

    def release(self) -> None:
        """Frees the socket; by the reader, at its end, or in a forked child, which leaves the connection alone."""
        ...


#: Opens a stream to ``host:port`` within so many seconds; ``OSError`` where it cannot.
Dial = Callable[[str, float], Stream]


class SocketStream:
    """A plain TCP stream."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setblocking(False)
        self._socket = connected
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(connected, select.POLLOUT)

    def receive(self, space: memoryview) -> int:
        """Waits for bytes; see ``Stream``."""
        while True:
            self._readable.poll()
            try:
                return self._socket.recv_into(space)
            except BlockingIOError:
                continue

    def send(self, content: memoryview, timeout: float) -> int:
        """Writes what fits, waiting up to ``timeout`` seconds; see ``Stream``."""
        ends = monotonic() + timeout
        while True:
            try:
                return self._socket.send(content)
            except BlockingIOError:
                self._writable.poll(max(0.0, ends - monotonic()) * 1000)
                if monotonic() >= ends:
                    raise TimeoutError(f"the server took no bytes for {timeout:.1f} s") from None

    def shut(self) -> None:
        """Ends both directions; see ``Stream``."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)
            # Not the method of a TLS socket, which would take the encryption off while another thread writes.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # closed already, by the peer or by us: what was asked for

    def release(self) -> None:
        """Frees the socket; see ``Stream``."""
        self._socket.close()


def dial(address: str, timeout: float) -> Stream:
    """Opens a plain TCP stream to ``host:port``."""
    host, _, port = address.rpartition(":")
    return SocketStream(socket.create_connection((host.strip("[]"), int(port)), timeout))
