"""What probes and scrapers are told."""

import logging
import re
import socket
import struct
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from outbox.errors import SettingsError
from outbox.health.metrics import Metrics
from outbox.health.server import HealthServer
from outbox.health.vitals import Vitals
from tests.probes import got, probed
from tests.waiting import expect_soon


@pytest.fixture
def vitals() -> dict[str, Vitals]:
    return {"east": Vitals(), "west": Vitals()}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def port(vitals: dict[str, Vitals], metrics: Metrics) -> Iterator[int]:
    with HealthServer("127.0.0.1", 0, vitals, metrics.text) as server:
        yield server.port


def test_one_database_that_is_not_ready_makes_the_process_not_ready(port: int, vitals: dict[str, Vitals]) -> None:
    assert probed(port, "/readyz")[0] == 200
    vitals["west"].lacks("database", "connection refused")
    status, told = probed(port, "/readyz")
    assert status == 503
    assert not told["ready"]
    assert told["databases"]["east"]["ready"]
    assert told["databases"]["west"]["needs"]["database"]["reason"] == "connection refused"
    # And it is live all the same
    assert probed(port, "/livez")[0] == 200
    vitals["west"].has("database")
    assert probed(port, "/readyz?verbose")[0] == 200


def test_a_stalled_loop_is_not_live(port: int, vitals: dict[str, Vitals]) -> None:
    vitals["east"].pulse("relay", -1.0)
    status, told = probed(port, "/livez")
    assert status == 503
    assert told["databases"]["east"]["loops"]["relay"]["life"] == "stalled"


def test_metrics_are_in_prometheus_text_format(port: int, metrics: Metrics) -> None:
    metrics.add("outbox_refusals_total", "Refusals.", topic='odd"topic\n', database="east")
    metrics.add("outbox_refusals_total", "Refusals.", 2, topic='odd"topic\n', database="east")
    metrics.gauge("outbox_oldest_due_seconds", "Age.", lambda: 1.5, database="east")
    metrics.gauge("outbox_oldest_due_seconds", "Age.", lambda: None, database="west")
    status, kind, text = got(port, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert text == (
        "# HELP outbox_oldest_due_seconds Age.\n"
        "# TYPE outbox_oldest_due_seconds gauge\n"
        'outbox_oldest_due_seconds{database="east"} 1.5\n'
        "# HELP outbox_refusals_total Refusals.\n"
        "# TYPE outbox_refusals_total counter\n"
        'outbox_refusals_total{database="east",topic="odd\\"topic\\n"} 3\n'
    )
    assert all(re.match(r"#|[a-z_]+(\{.*\})? [0-9.e+]+$", line) for line in text.splitlines())


def test_other_paths_name_the_ones_that_there_are(port: int) -> None:
    status, _, text = got(port, "/")
    assert status == 404
    assert text.split() == ["/livez", "/readyz", "/metrics"]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"OUTBOX_HEALTH_PORT.*{number}"):
            HealthServer("127.0.0.1", number, {})


def has_ipv6() -> bool:
    """Whether this host has a loopback address of IPv6: containers often have none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
def test_it_listens_on_an_address_of_either_kind(vitals: dict[str, Vitals]) -> None:
    with HealthServer("::1", 0, vitals) as server:
        connection = HTTPConnection("::1", server.port, timeout=30)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_client_that_hangs_up_is_no_fault(port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "outbox.health.server")
    # When a balancer ends its connection in the middle
    balancer = socket.create_connection(("127.0.0.1", port))
    balancer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    balancer.send(b"GET /livez")
    balancer.close()
    # Then nobody is alarmed, and the next one is answered
    expect_soon(lambda: any("failed" in it.message for it in caplog.records), "it is told", within=60)
    assert probed(port, "/livez")[0] == 200
    assert {it.levelno for it in caplog.records} == {logging.DEBUG}


def test_clients_that_say_nothing_do_not_use_up_the_process(port: int) -> None:
    # Given a process with its threads; When very many clients connect and say nothing
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(300)]
    idle[-1].settimeout(0.05)
    most = threading.active_count()
    try:
        # Then the last one, at least, is hung up on, and the others take so many threads at most
        while not hung_up(idle[-1]):
            most = max(most, threading.active_count())
        assert most - before <= 200
    finally:
        for client in idle:
            client.close()
    # When they are gone; Then probes are answered
    expect_soon(lambda: probed(port, "/livez")[0] == 200, "probes are answered")


def hung_up(client: socket.socket) -> bool:
    """Whether the server has ended the connection."""
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
