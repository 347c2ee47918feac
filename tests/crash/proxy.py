"""A loopback TCP proxy that makes a network bad: it stalls, cuts, and loses answers."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Address = tuple[str, int]


class Link:
    """One connection through the proxy: two sockets, a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket, rest: Callable[[], None]) -> None:
        self._client, self._server, self._rest = client, server, rest
        #: Answers are read and thrown away; such a link must be cut, since half a frame may be missing.
        self.loses_answers = False
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def cut(self) -> None:
        """Ends the connection for both sides, with whatever is under way on it."""
        for end in (self._client, self._server):
            with suppress(OSError):  # the other side may have been faster
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the sockets back."""
        self.cut()
        self._client.close()
        self._server.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # a peer that is gone ends the link: this is what clients are tested against
            while chunk := source.recv(1 << 16):
                self._rest()
                if not (self.loses_answers and source is self._server):
                    target.sendall(chunk)
        self.cut()


class Proxy:
    """Listens at ``address`` and passes everything on to ``upstream``, unless told to be a bad network."""

    def __init__(self, address: Address, upstream: Address) -> None:
        self._upstream = upstream
        self._stalled_until = 0.0
        self._links: list[Link] = []
        self._listener = socket.create_server(address)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def stall(self, seconds: float) -> None:
        """Passes nothing on for so long; then everything, so that nothing is later than that."""
        self._stalled_until = time.monotonic() + seconds
        time.sleep(seconds)

    def cut(self) -> None:
        """Ends all connections."""
        for link in list(self._links):
            link.cut()

    def lose_answers(self, seconds: float) -> None:
        """Requests arrive, answers do not; afterwards the connections that lost some are cut."""
        deaf = list(self._links)
        for link in deaf:
            link.loses_answers = True
        time.sleep(seconds)
        for link in deaf:
            link.cut()

    def close(self) -> None:
        """Ends the listener and all connections."""
        with suppress(OSError):  # some systems refuse to shut a listener down, and wake it by the close alone
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(5)
        for link in self._links:
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(self._upstream, timeout=5)
            except OSError:  # the broker is down: the client sees its connection end
                client.close()
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links.append(Link(client, server, self._rest))

    def _rest(self) -> None:
        while (left := self._stalled_until - time.monotonic()) > 0:
            time.sleep(left)
