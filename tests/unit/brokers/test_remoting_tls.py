"""TLS: who is trusted, what happens where the sides do not agree, and both directions at once."""

import hashlib
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from outbox.brokers.base import Ending, Outage, Stored
from outbox.brokers.remoting.streams import Dial, Stream, dial
from outbox.brokers.remoting.tls import tls_context, tls_dial
from outbox.clock import monotonic
from outbox.errors import SettingsError
from outbox.lifecycle import Verdict
from outbox.settings import load
from outbox.verdict import Confirmation
from outbox.wiring import open_broker, open_source
from tests.services.certificates import Certificate, make_ca, make_certificate
from tests.services.require import require
from tests.unit.brokers.remoting_opened import Open, message
from tests.unit.brokers.remoting_server import healthy

pytestmark = pytest.mark.usefixtures("unhurried")


@dataclass(frozen=True, slots=True)
class Papers:
    """A CA, what it vouches for, and a CA that vouches for nothing."""

    ca: Certificate
    server: Certificate
    elsewhere: Certificate
    client: Certificate
    other_ca: Certificate


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("tls")
    ca = require(lambda: make_ca(folder))
    names = ("server", "elsewhere", "client")
    alternatives = ("IP:127.0.0.1", "DNS:elsewhere.example", "DNS:client.example")
    made = (make_certificate(folder, ca, *each) for each in zip(names, alternatives, strict=True))
    server, elsewhere, client = made
    return Papers(ca, server, elsewhere, client, make_ca(folder, "other"))


def serving(shown: Certificate, demanded: Certificate | None = None) -> ssl.SSLContext:
    """A server's side; ``demanded``: the CA that must vouch for clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.file, shown.key)
    if demanded is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(demanded.file)
    return context


def dialling(trusted: Certificate, own: Certificate | None = None, *, check_host: bool = True) -> Dial:
    """Our side."""
    files = (own.file, own.key) if own else ("", "")
    return tls_dial(tls_context(trusted.file, *files, check_host=check_host))


def test_halves_are_stored_and_committed(opened: Open, papers: Papers) -> None:
    # Given a server that the CA vouches for; When halves are sent and one is committed
    _, broker = opened(healthy, tls=serving(papers.server), dialler=dialling(papers.ca))
    outcomes = broker.prepare([message(body=b"x" * 100_000) for _ in range(50)], timeout=60)
    halves = [outcome.half for outcome in outcomes if isinstance(outcome, Stored)]
    (ended,) = broker.resolve([Ending(halves[0], Verdict.COMMIT)], monotonic() + 60)
    # Then all is as without TLS
    assert len(halves) == 50
    assert ended.confirmation is Confirmation.CONFIRMED


def test_a_server_that_nobody_vouches_for_is_not_spoken_to(opened: Open, papers: Papers) -> None:
    # Given a client that trusts another CA; When it sends; Then it says why nothing was sent
    server, broker = opened(healthy, tls=serving(papers.server), dialler=dialling(papers.other_ca))
    (outcome,) = broker.prepare([message()], timeout=60)
    assert isinstance(outcome, Outage)
    assert "certificate verify failed" in outcome.reason
    assert server.requests == []


@pytest.mark.parametrize(("check_host", "outcome"), [(True, Outage), (False, Stored)])
def test_the_certificate_must_name_the_host_unless_that_is_off(
    opened: Open, papers: Papers, check_host: bool, outcome: type
) -> None:
    dialler = dialling(papers.ca, check_host=check_host)
    _, broker = opened(healthy, tls=serving(papers.elsewhere), dialler=dialler)
    assert isinstance(broker.prepare([message()], timeout=60)[0], outcome)


def test_a_client_shows_its_certificate_where_one_is_demanded(opened: Open, papers: Papers) -> None:
    # Given a server that demands one; When a client has one, or has none; Then it is served, or not
    demanding = serving(papers.server, demanded=papers.ca)
    _, known = opened(healthy, tls=demanding, dialler=dialling(papers.ca, papers.client))
    assert isinstance(known.prepare([message()], timeout=60)[0], Stored)
    server, unknown = opened(healthy, tls=demanding, dialler=dialling(papers.ca))
    assert isinstance(unknown.prepare([message()], timeout=60)[0], Outage)
    assert server.requests == []


def test_a_plain_client_of_a_tls_server_has_an_outage(opened: Open, papers: Papers) -> None:
    server, broker = opened(healthy, tls=serving(papers.server), dialler=dial)
    assert isinstance(broker.prepare([message()], timeout=60)[0], Outage)
    assert server.requests == []


def test_a_server_that_never_shakes_hands_is_an_outage(papers: Papers) -> None:
    # Given a server that accepts and says nothing; When it is dialled; Then the time limit holds
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        dialling(papers.ca)(f"127.0.0.1:{silent.getsockname()[1]}", 0.2)


class Peer:
    """One accepted TLS connection, driven by the test."""

    def __init__(self, context: ssl.SSLContext, dialler: Dial) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            opened: list[Stream] = []
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            dialled = threading.Thread(target=lambda: opened.append(dialler(address, 60)))
            dialled.start()
            accepted, _ = listening.accept()
            self.socket = context.wrap_socket(accepted, server_side=True)
            dialled.join(60)
        (self.stream,) = opened


@pytest.fixture
def peer(papers: Papers) -> Iterator[Peer]:
    made = Peer(serving(papers.server), dialling(papers.ca))
    yield made
    made.stream.shut()
    made.stream.release()
    made.socket.close()


def send_all(stream: Stream, content: bytes, timeout: float = 60) -> None:
    """Writes all of it."""
    left = memoryview(content)
    while left:
        left = left[stream.send(left, timeout) :]


def test_one_thread_reads_while_another_one_writes(peer: Peer) -> None:
    # Given a peer that sends back what it gets
    content = os.urandom(16 * 1024 * 1024)

    def echo() -> None:
        """Until everything went back."""
        left = len(content)
        while left:
            piece = peer.socket.recv(65536)
            peer.socket.sendall(piece)
            left -= len(piece)

    echoing = threading.Thread(target=echo)
    writing = threading.Thread(target=send_all, args=(peer.stream, content))
    echoing.start()
    writing.start()
    # When as much is read as is written, at the same time
    got = hashlib.sha256()
    space, left = memoryview(bytearray(65536)), len(content)
    while left:
        size = peer.stream.receive(space)
        assert size, f"the stream ended, {left} bytes are missing"
        got.update(space[:size])
        left -= size
    writing.join(60)
    echoing.join(60)
    # Then every byte came back, in order
    assert got.digest() == hashlib.sha256(content).digest()


def test_a_peer_that_does_not_read_ends_the_write_in_time(peer: Peer) -> None:
    # Given a peer that reads nothing; When more is written than fits; Then the time limit ends it
    with pytest.raises(TimeoutError):
        send_all(peer.stream, bytes(64 * 1024 * 1024), 0.2)


def test_shut_wakes_the_reader_and_ends_writing(peer: Peer) -> None:
    # Given a reader that waits
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(peer.stream.receive, memoryview(bytearray(10)))
        # When the stream is shut, twice
        peer.stream.shut()
        peer.stream.shut()
        # Then the reader sees the end, or what is one (Python 3.13), and nothing can be written any more
        assert isinstance(reading.exception(60), OSError) or reading.result() == 0
    with pytest.raises(OSError, match=r"."):
        peer.stream.send(memoryview(b"in the clear?"), 1)


def test_the_peer_s_end_is_an_end(peer: Peer) -> None:
    # Given what the peer said last; When it closes; Then that is read, and the end after it
    peer.socket.sendall(b"last")
    peer.socket.shutdown(socket.SHUT_WR)
    space = memoryview(bytearray(10))
    assert bytes(space[: peer.stream.receive(space)]) == b"last"
    assert peer.stream.receive(space) == 0


def encrypted(key: Certificate, folder: Path) -> str:
    """A copy of the key that has a password."""
    made = str(folder / "locked.key")
    command = ["openssl", "pkcs8", "-topk8", "-in", key.key, "-out", made, "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.mark.parametrize("fault", ["missing", "no certificate", "locked"])
def test_files_that_cannot_be_used_are_named(papers: Papers, tmp_path: Path, fault: str) -> None:
    # Given settings with a file that is missing, is none of its kind, or has a password that nobody can be asked for
    (tmp_path / "text").write_text("no certificate")
    named = {
        "missing": {"tls_ca_file": str(tmp_path / "missing")},
        "no certificate": {"tls_ca_file": str(tmp_path / "text")},
        "locked": {"tls_certificate": papers.client.file, "tls_key": encrypted(papers.client, tmp_path)},
    }[fault]
    settings = load(broker_url="rocketmq://127.0.0.1:9876", origin="orders", tls=True, **named)
    # When broker or source are opened; Then the settings and the file are named
    for opening in (lambda: open_broker(settings), lambda: open_source(settings, ["topic"], "group")):
        with pytest.raises(SettingsError, match="OUTBOX_TLS_CA_FILE") as caught:
            opening()
        assert list(named.values())[-1] in str(caught.value)
