"""Servers and transports of one test, and the few words that the remoting tests are written in."""

import ssl
from collections.abc import Callable

from outbox.brokers.base import (
    Half,
    Outgoing,
)
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.commands import Request, Sign
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.listener import HEARTBEAT
from outbox.brokers.remoting.routes import FRESH
from outbox.brokers.remoting.streams import Dial, dial
from outbox.identity import unique_ids
from tests.unit.brokers.remoting_server import Behaviour, FakeServer, healthy
from tests.waiting import expect_soon

GROUP = "group"
TOPIC = "topic"
DEADLINE = 60.0


def message(**fields: object) -> Outgoing:
    """A message with an identity of its own."""
    defaults: dict[str, object] = {"body": b"body", "unique_id": unique_ids.fresh(), "key": "key"}
    return Outgoing(topic=TOPIC, **{**defaults, **fields})  # type: ignore[arg-type]


def half(server: FakeServer) -> Half:
    """A half that the server's broker holds."""
    return Half(TOPIC, unique_ids.fresh(), "broker-a", "5 1001", GROUP)


class Open:
    """Servers and brokers that end with the test."""

    def __init__(self) -> None:
        self._closing: list[Callable[[], object]] = []

    def __call__(
        self,
        behaviour: Behaviour,
        *,
        perm: int = 6,
        in_flight: int = 512,
        sign: Sign | None = None,
        dialler: Dial = dial,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[FakeServer, RemotingBroker]:
        """A server of this behaviour that is name server and broker, and a transport to it."""
        server = FakeServer(behaviour, perm=perm, tls=tls)
        server.__enter__()
        broker = RemotingBroker(server.address, GROUP, in_flight=in_flight, sign=sign, dialler=dialler)
        self._closing += [server.stop, broker.close]
        return server, broker

    def client(self, name_servers: str, *, routes_fresh: float = FRESH, heartbeat: float = HEARTBEAT) -> RemotingBroker:
        """One more transport."""
        broker = RemotingBroker(name_servers, GROUP, routes_fresh=routes_fresh, heartbeat=heartbeat)
        self._closing.append(broker.close)
        return broker

    def first_to_see(self, name_servers: str, seen: Callable[[RemotingBroker], bool]) -> RemotingBroker:
        """A transport to which this happens with what it sends first, in a short time.

        One that gets no turn in that time, or whose servers get none, sees something else, and is left.
        """
        made: list[RemotingBroker] = []

        def one_more() -> bool:
            made.append(self.client(name_servers))
            return seen(made[-1])

        expect_soon(one_more, "it happens to a transport")
        return made[-1]

    def close(self) -> None:
        """Ends all, the transports first."""
        for close in reversed(self._closing):
            close()


def on_send(respond: Callable[[Frame], bytes | None]) -> Behaviour:
    """Healthy, except for messages that are sent."""
    return lambda server, request: (
        respond(request) if request.code == Request.SEND_MESSAGE_V2 else healthy(server, request)
    )
