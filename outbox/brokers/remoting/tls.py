"""TLS: the stream, and how it is opened."""

import select
import socket
import ssl
import threading
from typing import Final

from outbox.brokers.remoting.streams import Dial, SocketStream, Stream
from outbox.clock import monotonic

_WANTS: Final[dict[int | None, int]] = {
    ssl.SSL_ERROR_WANT_READ: select.POLLIN,
    ssl.SSL_ERROR_WANT_WRITE: select.POLLOUT,
}


class TlsStream(SocketStream):
    """A TLS connection that one thread reads while another one writes.

    OpenSSL keeps one state for both directions, so a lock is held around each call into it. The socket does not block:
    the lock is never held while a thread waits, which it does on the socket itself.
    """

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        self._tls = connected
        self._using = threading.Lock()

    def receive(self, space: memoryview) -> int:
        """Waits for bytes; see ``Stream``. What OpenSSL holds already is read before the socket is waited for."""
        while True:
            try:
                with self._using:
                    return self._tls.recv_into(space)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
                self._wait(wants, None)

    def send(self, content: memoryview, timeout: float) -> int:
        """Writes one record of at most 16 KiB, waiting up to ``timeout`` seconds; see ``Stream``."""
        ends = monotonic() + timeout
        while True:
            try:
                with self._using:
                    return self._tls.send(content)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
                self._wait(wants, max(0.0, ends - monotonic()))
                if monotonic() >= ends:
                    raise TimeoutError(f"the server took no bytes for {timeout:.1f} s") from None

    def _wait(self, wants: ssl.SSLError, seconds: float | None) -> None:
        ready = select.poll()
        ready.register(self._tls, _WANTS[wants.errno])
        ready.poll(None if seconds is None else seconds * 1000)


def tls_dial(context: ssl.SSLContext) -> Dial:
    """Opens TLS streams; the server's certificate must name the host that was dialled, unless the context says not."""

    def dial(address: str, timeout: float) -> Stream:
        """Connects and shakes hands, within ``timeout`` seconds together."""
        ends = monotonic() + timeout
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        connected = socket.create_connection((host, int(port)), timeout)
        try:
            connected.settimeout(max(0.05, ends - monotonic()))
            return TlsStream(context.wrap_socket(connected, server_hostname=host))
        except BaseException:
            connected.close()
            raise

    return dial


def tls_context(ca_file: str, certificate: str, key: str, *, check_host: bool) -> ssl.SSLContext:
    """TLS 1.2 or newer, with a server that the CA vouches for; ``OSError`` where a file is none of its kind.

    ``ca_file`` "": the system's CAs. ``certificate`` "": none of ours is shown; ``key`` "": it is in that file.
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a write would have to read, which another thread does
    context.check_hostname = check_host
    if certificate:
        # An empty password: a key that has one is refused, and nothing waits for a terminal.
        context.load_cert_chain(certificate, key or None, password="")
    return context
