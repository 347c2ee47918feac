"""A real cluster that enforces TLS, demands client certificates, authenticates and authorises."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from outbox.brokers.base import Outage
from outbox.brokers.remoting.acl import signature
from outbox.brokers.remoting.connections import Connections
from outbox.brokers.remoting.tls import tls_context, tls_dial
from outbox.identity import fresh_token
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting
from tests.contracts.rig import PATIENCE, Asked, look_up, message, now, prepare_one, publish, soon
from tests.integration.test_remoting_acl import DEADLINE, ROOT, SETTINGS, Service, receive
from tests.services.certificates import make_ca, make_certificate
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.services.rocketmq.admin import PatientConnections
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")


@dataclass(frozen=True, slots=True)
class Secured:
    """The cluster, and the settings of a client that it accepts."""

    cluster: RocketMQ
    files: dict[str, str]

    def service(self, secret: str = ROOT[1], **more: object) -> Service:
        """A service with these settings on top."""
        return Service(self.cluster, ROOT[0], secret, **{"tls": True, **self.files, **more})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("tls")
    ca = require(lambda: make_ca(folder))
    server, client = (make_certificate(folder, ca, name) for name in ("server", "client"))
    properties = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": server.file,
        "tls.server.keyPath": server.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": ca.file,
        "tls.client.certPath": server.file,
        "tls.client.keyPath": server.key,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": ca.file,
    }
    context = tls_context(ca.file, client.file, client.key, check_host=True)

    def connect() -> Connections:
        """As the user that may do all."""
        return PatientConnections(dialler=tls_dial(context), sign=signature(*ROOT))

    with require(lambda: RocketMQ(settings=SETTINGS, connect=connect, tls=properties)) as cluster:
        files = {"tls_ca_file": ca.file, "tls_certificate": client.file, "tls_key": client.key}
        yield Secured(cluster, files)


@pytest.fixture
def topic(secured: Secured) -> str:
    name = f"topic-{fresh_token()}"
    secured.cluster.create_topics([name, f"{name}-b"], queues=4)
    return name


@pytest.fixture
def service(secured: Secured) -> Iterator[Service]:
    opened = secured.service()
    yield opened
    opened.close()


def test_halves_are_committed_looked_up_and_received(service: Service, topic: str) -> None:
    # Given a service that has certificate and keys; When it commits a half
    broker, source = service.broker(), service.source(topic)
    since = now()
    ours = publish(broker, message(topic, body=b"x" * 200_000))
    # Then a look-up sees the message, and a consumer receives it
    expect_soon(lambda: look_up(broker, ours, since) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE)
    (delivery,) = receive(source, 1)
    assert (delivery.unique_id, delivery.body) == (ours.half_id, b"x" * 200_000)
    assert source.acknowledge(delivery)


def test_checks_arrive_and_are_answered(service: Service, topic: str) -> None:
    # Given a listener, and a half that nobody ends; When the broker asks; Then the answer is confirmed
    broker = service.broker()
    asked = Asked(lambda check, answer: answer(Verdict.COMMIT, soon()))
    broker.listen([topic], asked)
    expect_soon(broker.checks_ready, "the listener is registered", within=DEADLINE)
    ours = prepare_one(broker, message(topic))
    expect_soon(lambda: bool(asked.answers), "the half is asked about", within=DEADLINE)
    half_id, ended = asked.answers[0]
    assert (half_id, ended.confirmation) == (ours.half_id, Confirmation.CONFIRMED)


def test_a_wrong_secret_is_an_outage_under_tls_too(secured: Secured, topic: str) -> None:
    impostor = secured.service("a-wrong-secret")
    (outcome,) = impostor.broker().prepare([message(topic)], PATIENCE)
    impostor.close()
    assert isinstance(outcome, Outage)
    assert "OUTBOX_SECRET_KEY" in outcome.reason


@pytest.mark.parametrize(
    "lacking",
    [
        {"tls": False, "tls_ca_file": "", "tls_certificate": "", "tls_key": ""},
        {"tls_certificate": "", "tls_key": ""},
        {"tls_ca_file": ""},
    ],
    ids=["plain", "no certificate", "ca of the system"],
)
def test_who_does_not_fit_has_an_outage(secured: Secured, topic: str, lacking: dict[str, object]) -> None:
    # Given a client without TLS, certificate or CA; When it sends and receives; Then it has an outage and goes on
    stranger = secured.service(ROOT[1], **lacking)
    (outcome,) = stranger.broker().prepare([message(topic)], timeout=5)
    assert isinstance(outcome, Outage)
    assert stranger.source(topic).receive(1, 0.5) == []
    stranger.close()
