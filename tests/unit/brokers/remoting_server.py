"""A server on loopback that speaks the remoting protocol as badly as a test wants it to."""

import json
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from outbox.brokers.remoting import frames
from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.frames import Frame, FrameBuffer, ProtocolError
from outbox.brokers.remoting.stored import encode_properties


def stored_message(
    topic: str,
    body: bytes,
    properties: Mapping[str, str],
    *,
    flag: int = 0,
    long_topic: bool = False,
    ipv6: bool = False,
    compressed: bool = False,
    offset: int = 0,
) -> bytes:
    """A message as a broker stores it."""
    host = bytes(20 if ipv6 else 8)
    flag |= (0x30 if ipv6 else 0) | (1 if compressed else 0)
    body = zlib.compress(body) if compressed else body
    name, words = topic.encode(), encode_properties(properties).encode()
    size = struct.pack(">H" if long_topic else ">B", len(name))
    rest = b"".join(
        (
            struct.pack(">IIiiqqiq", 0xDAA320AB if long_topic else 0xDAA320A7, 0, 0, 0, offset, 0, flag, 0),
            *(host, bytes(8), host, bytes(12), struct.pack(">i", len(body)), body),
            *(size, name, struct.pack(">H", len(words)), words),
        )
    )
    return struct.pack(">I", len(rest) + 4) + rest


#: What the server does with a request: the bytes to answer, None to say nothing.
Behaviour = Callable[["FakeServer", Frame], bytes | None]


@dataclass(slots=True)
class FakeServer:
    """Accepts connections, reads requests, and answers them as ``behaviour`` says; knows its own route."""

    behaviour: Behaviour
    perm: int = 6
    #: Whether it reads what it is sent.
    reads: bool = True
    #: Speaks TLS.
    tls: ssl.SSLContext | None = None
    #: Addresses of the brokers that its route names, by name; its own where there are none.
    leads_to: dict[str, str] = field(default_factory=dict)
    requests: list[Frame] = field(default_factory=list)
    _listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    _accepted: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _stopped: bool = False

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many connections have been accepted."""
        return len(self._accepted)

    def asked(self, code: int) -> list[Frame]:
        """The requests of one kind, in order."""
        return [request for request in list(self.requests) if request.code == code]

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it; to stop twice is fine."""
        if self._stopped:
            return
        self._stopped = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
        for accepted in self._accepted:
            accepted.close()

    def hang_up(self) -> None:
        """Ends every connection."""
        for accepted in self._accepted:
            try:
                accepted.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # ended already

    def push(self, content: bytes) -> None:
        """Sends bytes on every connection without being asked."""
        for accepted in self._accepted:
            accepted.sendall(content)

    def route(self) -> bytes:
        """A route body that leads to ``leads_to``; keys unquoted, as old name servers write them."""
        masters = self.leads_to or {"broker-a": self.address}
        brokers = [
            f'{{"brokerAddrs":{{0:"{at}"}},"brokerName":"{name}","cluster":"c"}}' for name, at in masters.items()
        ]
        numbers = f'"perm":{self.perm},"readQueueNums":4,"writeQueueNums":4,"topicSysFlag":0'
        queues = [f'{{"brokerName":"{name}",{numbers}}}' for name in masters]
        return f'{{"brokerDatas":[{",".join(brokers)}],"queueDatas":[{",".join(queues)}]}}'.encode()

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return  # the test is over
            self._accepted.append(accepted)
            if self.reads:
                self._spawn(lambda accepted=accepted: self._serve(accepted))  # type: ignore[misc]

    def _serve(self, accepted: socket.socket) -> None:
        if self.tls is not None:
            try:
                secured = self.tls.wrap_socket(accepted, server_side=True)
            except OSError:
                return  # the client went away, or speaks no TLS: the socket is closed
            self._accepted[self._accepted.index(accepted)] = secured
            accepted = secured
        buffer = FrameBuffer()
        with accepted:
            try:
                while size := accepted.recv_into(buffer.space()):
                    for request in buffer.take(size):
                        self.requests.append(request)
                        answer = self._answer(request)
                        if answer is not None:
                            accepted.sendall(answer)
            except (OSError, ProtocolError):
                return  # the client went away

    def _answer(self, request: Frame) -> bytes | None:
        if request.code == Request.TOPIC_ROUTE:
            return answer(request, body=self.route())
        return self.behaviour(self, request)


def answer(
    request: Frame, code: int = 0, ext: Mapping[str, str] | None = None, body: bytes = b"", remark: str = ""
) -> bytes:
    """The answer to a request."""
    return frames.encode(code, request.opaque, ext or {}, body, flag=frames.RESPONSE, remark=remark)


def stored(request: Frame) -> bytes:
    """The answer to a message that was stored."""
    ext = {"msgId": "7F00000100002A9F" + f"{request.opaque:016X}", "queueOffset": str(request.opaque), "queueId": "0"}
    return answer(request, ext=ext)


def healthy(server: FakeServer, request: Frame) -> bytes | None:
    """Stores everything and confirms everything."""
    if request.flag & frames.ONE_WAY:
        return None
    if request.code == Request.SEND_MESSAGE_V2:
        return stored(request)
    if request.code == Request.CLUSTER_INFO:
        return answer(request, body=json.dumps({"brokerAddrTable": {}}).encode())
    return answer(request, Code.SUCCESS)
