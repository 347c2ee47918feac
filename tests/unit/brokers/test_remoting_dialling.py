"""Names that the system's resolver does not resolve in time."""

import socket
import threading

import pytest

from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connections import Away, Connections
from outbox.brokers.remoting.dialling import is_name
from outbox.brokers.remoting.streams import Stream, dial
from tests.unit.brokers.remoting_opened import Open
from tests.unit.brokers.remoting_server import healthy
from tests.waiting import expect_soon


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1:9876", False),
        ("[::1]:9876", False),
        ("::1:10911", False),  # as a broker registers it
        ("fe80::1%eth0:10911", False),
        ("localhost:9876", True),
        ("rmq.default.svc:9876", True),
    ],
)
def test_what_has_to_be_resolved(address: str, name: bool) -> None:
    assert is_name(address) is name


@pytest.mark.parametrize("address", ["[::1]:{port}", "::1:{port}"], ids=["in-brackets", "as-registered"])
def test_a_server_is_dialled_by_its_ipv6_address(address: str) -> None:
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this host has no IPv6")
    with listening:
        stream = dial(address.format(port=listening.getsockname()[1]), 30)
        listening.accept()[0].close()
        assert stream.receive(memoryview(bytearray(1))) == 0
        stream.release()


class Released:
    """A stream that knows whether it was freed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.freed = threading.Event()
        self.receive, self.send, self.shut = stream.receive, stream.send, stream.shut

    def release(self) -> None:
        """Says so."""
        self._stream.release()
        self.freed.set()


class Resolver:
    """Resolves nothing until it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self.late: Released | None = None

    def dial(self, address: str, timeout: float) -> Stream:
        """As ``dial``, once there is an answer."""
        self.asked += 1
        self.answers.wait()
        stream = dial(address, timeout)
        self.late = self.late or Released(stream)
        return self.late if self.asked == 1 else stream


def test_nobody_waits_for_a_resolver_that_says_nothing(opened: Open) -> None:
    # Given a server that is known by its name, and a resolver that says nothing
    server, _ = opened(healthy)
    address = f"localhost:{server.address.rpartition(':')[2]}"
    resolver = Resolver()
    connections = Connections(dialler=resolver.dial)

    # When it is asked for; Then it counts as away in time, and no other thread is spent on it meanwhile
    for _ in range(3):
        with pytest.raises(Away):
            connections.call(address, Request.HEARTBEAT, {}, timeout=0.1)
    expect_soon(lambda: is_told(connections, address, "still being resolved"), "it is told why")
    expect_soon(lambda: resolver.asked, "the resolver is asked")
    assert resolver.asked == 1
    # When the resolver answers; Then what came too late is freed, and the server is there
    resolver.answers.set()
    expect_soon(lambda: resolver.late is not None and resolver.late.freed.is_set(), "the late stream is freed")
    expect_soon(lambda: is_told(connections, address, ""), "it answers")
    connections.close()


def is_told(connections: Connections, address: str, why: str) -> bool:
    """Whether it is away for this reason; "": it is there."""
    try:
        connections.call(address, Request.HEARTBEAT, {}, timeout=1 if not why else 0.1)
    except Away as away:
        return bool(why) and why in str(away)
    return not why
