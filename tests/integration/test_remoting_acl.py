"""A real broker that authenticates and authorises (RocketMQ 5.x): what a user may, and what a stranger is told."""

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import pytest

from outbox.brokers.base import Broker, Outage, Refused, Stored
from outbox.brokers.remoting.acl import signature
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.connections import Connections
from outbox.brokers.source import Delivery, Source
from outbox.clock import monotonic
from outbox.identity import fresh_token
from outbox.lifecycle import Verdict
from outbox.settings import load
from outbox.verdict import Confirmation, Sighting
from outbox.wiring import open_broker, open_source
from tests.contracts.rig import (
    PATIENCE,
    Asked,
    end_one,
    look_up,
    message,
    now,
    outcomes_of,
    prepare_all,
    prepare_one,
    publish,
    send_all,
    soon,
)
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.services.rocketmq.admin import PatientConnections
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE: Final = 60.0
ROOT: Final = ("root", "root-secret-1234")
INNER: Final = ("inner", "inner-secret-1234")
USER: Final = ("orders", "orders-secret-1234")
#: ``RequestCode`` of RocketMQ 5.x: AUTH_CREATE_USER, AUTH_CREATE_ACL.
CREATE_USER: Final = 3001
CREATE_ACL: Final = 3006
_PROVIDERS: Final = "org.apache.rocketmq.auth"
SETTINGS: Final[Mapping[str, object]] = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_PROVIDERS}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_PROVIDERS}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]}),
}
#: What ``docs/operations.md`` says that a service needs.
RIGHTS: Final = {"Topic:*": ["Pub", "Sub"], "Group:*": ["Sub"]}


def as_root() -> Connections:
    """Connections of the user that may do all."""
    return PatientConnections(sign=signature(*ROOT))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RocketMQ]:
    """A cluster with ACL, and a user with the rights of a service."""
    with require(lambda: RocketMQ(settings=SETTINGS, connect=as_root)) as started:
        create_user(started, *USER, RIGHTS)
        yield started


def create_user(cluster: RocketMQ, name: str, secret: str, rights: Mapping[str, list[str]]) -> None:
    """Adds a user who may do this and nothing else."""
    connections = as_root()
    user = {"username": name, "password": secret, "userType": "Normal"}
    connections.ask(cluster.broker.url, CREATE_USER, {"username": name}, json.dumps(user).encode())
    entries = [
        {"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"}
        for resource, actions in rights.items()
    ]
    subject = f"User:{name}"
    body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
    connections.ask(cluster.broker.url, CREATE_ACL, {"subject": subject}, json.dumps(body).encode())
    connections.close()


@pytest.fixture
def topic(cluster: RocketMQ) -> str:
    name = f"topic-{fresh_token()}"
    cluster.create_topics([name, f"{name}-b"], queues=4)
    return name


class Service:
    """A service as its settings describe it."""

    def __init__(self, cluster: RocketMQ, access_key: str, secret_key: str, **more: object) -> None:
        self.settings = load(
            broker_url=f"rocketmq://{cluster.namesrv}",
            origin=f"origin-{fresh_token()}",
            access_key=access_key,
            secret_key=secret_key,
            **more,
        )
        self._opened: list[Broker | Source] = []

    def broker(self) -> Broker:
        """Its producer."""
        broker = open_broker(self.settings)
        self._opened.append(broker)
        return broker

    def source(self, topic: str) -> Source:
        """Its consumer."""
        source = open_source(self.settings, [topic], f"group-{fresh_token()}")
        self._opened.append(source)
        return source

    def close(self) -> None:
        """Closes what it opened."""
        for opened in self._opened:
            opened.close()


@pytest.fixture
def service(cluster: RocketMQ) -> Iterator[Service]:
    opened = Service(cluster, *USER)
    yield opened
    opened.close()


@pytest.fixture
def impostor(cluster: RocketMQ) -> Iterator[Service]:
    """A service that has the name of a user and another secret."""
    opened = Service(cluster, USER[0], "a-wrong-secret")
    yield opened
    opened.close()


def receive(source: Source, wanted: int) -> list[Delivery]:
    """Receives until there are ``wanted`` deliveries."""
    got: list[Delivery] = []
    end = monotonic() + DEADLINE
    while len(got) < wanted:
        assert monotonic() < end, f"{len(got)} of {wanted} within {DEADLINE} s"
        got += source.receive(wanted - len(got), 0.5)
    return got


def test_halves_are_committed_looked_up_and_received(service: Service, topic: str) -> None:
    # Given a service with the rights that the manual names
    broker, source = service.broker(), service.source(topic)
    # When a half is committed and another one rolled back
    since = now()
    ours = publish(broker, message(topic))
    other = prepare_one(broker, message(topic))
    assert end_one(broker, other, Verdict.ROLLBACK).confirmation is Confirmation.CONFIRMED
    # Then look-ups tell them apart
    expect_soon(lambda: look_up(broker, ours, since) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE)
    expect_soon(lambda: look_up(broker, other, since) is Sighting.ABSENT, "the other one is absent", within=DEADLINE)
    # And the first is received, renewed, given back, received again and acknowledged
    (delivery,) = receive(source, 1)
    assert delivery.unique_id == ours.half_id
    renewed = source.renew(delivery, 60)
    assert renewed is not None
    assert source.later(renewed, 0.1)
    (again,) = receive(source, 1)
    assert (again.unique_id, again.attempt) == (ours.half_id, 2)
    assert source.acknowledge(again)


def test_a_message_is_buried(service: Service, topic: str) -> None:
    # Given a plain message; When a consumer with these rights gives it up; Then the broker takes it as a dead letter
    send_all(service.broker(), [message(topic)])
    source = service.source(topic)
    (delivery,) = receive(source, 1)
    assert source.bury(delivery, "no use")


def test_checks_arrive_and_are_answered(service: Service, topic: str) -> None:
    # Given a listener, and a half that nobody ends
    broker = service.broker()
    asked = Asked(lambda check, answer: answer(Verdict.COMMIT, soon()))
    broker.listen([topic], asked)
    expect_soon(broker.checks_ready, "the listener is registered", within=DEADLINE)
    ours = prepare_one(broker, message(topic))
    # When the broker asks, without a signature; Then the answer, which has one, is confirmed
    expect_soon(lambda: bool(asked.answers), "the half is asked about", within=DEADLINE)
    half_id, ended = asked.answers[0]
    assert (half_id, ended.confirmation) == (ours.half_id, Confirmation.CONFIRMED)


def test_many_halves_of_all_kinds_are_signed(service: Service, topic: str) -> None:
    # Given bodies and keys that are no plain text; When they are sent at once; Then the broker takes every signature
    odd = [bytes(range(256)), "订单".encode(), b"x" * 100_000]
    batch = [message(topic, body=odd[number % 3], key=f'订"单\\%d{number}', lane=None) for number in range(60)]
    assert [half.half_id for half in prepare_all(service.broker(), batch)] == [each.unique_id for each in batch]


def test_a_wrong_secret_is_an_outage_that_says_what_to_check(service: Service, impostor: Service, topic: str) -> None:
    # Given a half of the right service
    ours = prepare_one(service.broker(), message(topic))
    # When an impostor sends, and ends it
    broker = impostor.broker()
    (sent,) = broker.send([message(topic)], PATIENCE)
    (prepared,) = broker.prepare([message(topic)], PATIENCE)
    ended = end_one(broker, ours, Verdict.COMMIT)
    # Then nothing gets through, whichever message it is, and it is told which settings to check
    assert isinstance(sent, Outage)
    assert isinstance(prepared, Outage)
    assert not prepared.partial
    assert ended.confirmation is Confirmation.DENIED
    for reason in (sent.reason, prepared.reason, ended.reason):
        assert reason.startswith("code 16: ")
        assert "OUTBOX_SECRET_KEY" in reason
    # And a look-up proves nothing to it
    assert look_up(broker, ours, datetime.now(UTC)) is Sighting.CANNOT_TELL


def test_a_wrong_secret_receives_nothing(impostor: Service, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    # Given a consumer with a wrong secret; When it polls; Then it gets nothing, and the log says what to check
    source = impostor.source(topic)

    def told() -> bool:
        assert source.receive(1, 1) == []
        return "code 16" in caplog.text

    with caplog.at_level(logging.WARNING):
        expect_soon(told, "the log says what is wrong", within=DEADLINE)
    assert "OUTBOX_SECRET_KEY" in caplog.text
    assert impostor.settings.secret_key.get_secret_value() not in caplog.text


def test_a_topic_that_a_user_may_not_write_is_refused(cluster: RocketMQ, topic: str) -> None:
    # Given a user with rights on one topic; When it sends to that one and to another; Then the other is refused
    create_user(cluster, "narrow", "narrow-secret-1234", {f"Topic:{topic}": ["Pub"]})
    opened = Service(cluster, "narrow", "narrow-secret-1234")
    broker = opened.broker()
    for batch in ([f"{topic}-b"], [topic, f"{topic}-b"]):
        outcomes = outcomes_of(broker.prepare, [message(name) for name in batch])
        assert [type(it) for it in outcomes] == [Stored if name == topic else Refused for name in batch]
    opened.close()


def test_a_stranger_gets_nothing_through(cluster: RocketMQ, topic: str) -> None:
    # Given a transport that signs nothing; When it sends; Then that is an outage: no message of its own is at fault
    broker = RemotingBroker(cluster.namesrv, "strangers")
    (outcome,) = broker.prepare([message(topic)], PATIENCE)
    broker.close()
    assert isinstance(outcome, Outage)
    assert "OUTBOX_ACCESS_KEY" in outcome.reason
