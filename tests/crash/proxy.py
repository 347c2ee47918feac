"""A loopback TCP proxy that makes a network bad: it stalls, cuts, loses one direction, holds requests for long."""

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
        #: Directions whose bytes are read and thrown away; such a link must be cut, since half a frame may be missing.
        self.loses_requests = self.loses_answers = False
        #: How many more bytes of requests pass before the link ends.
        self.allowance: int | None = None
        self._passing = threading.Event()
        self._passing.set()
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def cut(self) -> None:
        """Ends the connection for both sides, with whatever is under way on it."""
        for end in (self._client, self._server):
            with suppress(OSError):  # the other side may have been faster
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the sockets back."""
        self._passing.set()
        self.cut()
        self._client.close()
        self._server.close()

    def hold_requests(self) -> None:
        """Keeps what the client sends, also beyond the client's own end."""
        self._passing.clear()

    def release_requests(self) -> None:
        """Lets what was kept go on."""
        self._passing.set()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # a peer that is gone ends the link: this is what clients are tested against
            while chunk := source.recv(1 << 16):
                self._rest()
                if source is self._client:
                    self._pass_request(chunk)
                elif not self.loses_answers:
                    target.sendall(chunk)
        self._passing.wait()
        self.cut()

    def _pass_request(self, chunk: bytes) -> None:
        self._passing.wait()
        if self.loses_requests:
            return
        if self.allowance is not None:
            chunk = chunk[: self.allowance]
            self.allowance -= len(chunk)
        self._server.sendall(chunk)
        if self.allowance == 0:
            self.cut()


class Proxy:
    """Listens at ``address`` and passes everything on to ``upstream``, unless told to be a bad network."""

    def __init__(self, address: Address, upstream: Address) -> None:
        self.address = address
        self._upstream = upstream
        self._stalled_until = 0.0
        self._links: list[Link] = []
        self._listener = socket.create_server(address)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def hold_back(self, seconds: float) -> None:
        """Passes nothing on for so long, then everything, so that nothing is later than that; does not wait for it."""
        self._stalled_until = time.monotonic() + seconds

    def stall(self, seconds: float) -> None:
        """As ``hold_back``, until it is over."""
        self.hold_back(seconds)
        time.sleep(seconds)

    def cut(self) -> None:
        """Ends all connections."""
        for link in list(self._links):
            link.cut()

    def cut_after(self, limit: int, seconds: float) -> None:
        """Ends each present connection once ``limit`` more bytes of requests have passed; at the latest in the end."""
        links = list(self._links)
        for link in links:
            link.allowance = limit
        time.sleep(seconds)
        for link in links:
            link.cut()

    def lose_answers(self, seconds: float) -> None:
        """Requests arrive, answers do not; afterwards the connections that lost some are cut."""
        links = list(self._links)
        self.swallow_answers()
        time.sleep(seconds)
        for link in links:
            link.cut()

    def swallow_answers(self) -> None:
        """Requests on the present connections arrive, answers do not; ``cut`` ends it."""
        for link in list(self._links):
            link.loses_answers = True

    def lose_requests(self, seconds: float) -> None:
        """Answers arrive, requests do not; afterwards the connections that lost some are cut."""
        links = list(self._links)
        for link in links:
            link.loses_requests = True
        time.sleep(seconds)
        for link in links:
            link.cut()

    def hold_requests(self) -> Callable[[], None]:
        """Keeps all requests on the present connections, even if the client gives up; call what is returned to let
        them go on."""
        links = list(self._links)
        for link in links:
            link.hold_requests()

        def release() -> None:
            """What was kept reaches the broker now."""
            for link in links:
                link.release_requests()

        return release

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
