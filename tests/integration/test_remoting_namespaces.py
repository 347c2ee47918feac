"""Two tenants of one real cluster, whose topics and groups have the same names in two namespaces."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from outbox.brokers.base import Broker
from outbox.brokers.ledger import Ledger, Wanted
from outbox.brokers.source import Delivery, Source
from outbox.clock import monotonic
from outbox.identity import fresh_token
from outbox.lifecycle import Verdict
from outbox.settings import Settings, load
from outbox.verdict import Confirmation, Sighting
from outbox.wiring import open_broker, open_ledger, open_source
from tests.contracts.rig import Asked, end_one, look_up, message, now, prepare_one, publish, soon
from tests.services.rocketmq import create_topics
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE: Final = 60.0
GROUP: Final = "billing"


@dataclass
class Tenant:
    """A service in a namespace, as its settings describe it."""

    settings: Settings
    broker: Broker = field(init=False)
    ledger: Ledger = field(init=False)
    sources: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = open_broker(self.settings)
        self.ledger = open_ledger(self.settings)

    def source(self, topic: str) -> Source:
        """Its consumer."""
        self.sources.append(open_source(self.settings, [topic], GROUP))
        return self.sources[-1]

    def close(self) -> None:
        """Closes what it opened."""
        self.broker.close()
        self.ledger.close()
        for source in self.sources:
            source.close()


@pytest.fixture
def tenants(rocketmq: str) -> Iterator[tuple[Tenant, Tenant]]:
    """Two tenants of the same origin, told apart by their namespaces alone."""
    token = fresh_token()[:8]
    url, origin = f"rocketmq://{rocketmq}", f"shop-{token}"
    first, second = (
        Tenant(load(broker_url=url, origin=origin, namespace=f"{name}-{token}")) for name in ("east", "west")
    )
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def topic(rocketmq: str, tenants: tuple[Tenant, Tenant]) -> str:
    """The name of a topic in both namespaces; there is none without a namespace."""
    name = f"payments-{fresh_token()}"
    create_topics(rocketmq, [f"{tenant.settings.namespace}%{name}" for tenant in tenants], queues=2)
    return name


def receive(source: Source, wanted: int) -> list[Delivery]:
    """Receives until there are ``wanted`` deliveries."""
    got: list[Delivery] = []
    end = monotonic() + DEADLINE
    while len(got) < wanted:
        assert monotonic() < end, f"{len(got)} of {wanted} within {DEADLINE} s"
        got += source.receive(wanted - len(got), 0.5)
    return got


def test_each_tenant_publishes_and_receives_its_own(rocketmq: str, tenants: tuple[Tenant, Tenant], topic: str) -> None:
    # Given two tenants; When each publishes to the topic that has the same name in both
    halves = [publish(tenant.broker, message(topic)) for tenant in tenants]
    assert {(half.topic, half.group) for half in halves} == {(topic, tenants[0].settings.producer_group)}
    # Then each receives its own message alone, under the topic's bare name
    for tenant, half in zip(tenants, halves, strict=True):
        source = tenant.source(topic)
        (delivery,) = receive(source, 1)
        assert (delivery.topic, delivery.unique_id, delivery.attempt) == (topic, half.half_id, 1)
        # And renews it, gives it back, receives it again, and buries it among the dead letters of its namespace
        renewed = source.renew(delivery, 60)
        assert renewed is not None
        assert source.later(renewed, 0.1)
        (again,) = receive(source, 1)
        assert (again.topic, again.unique_id, again.attempt) == (topic, half.half_id, 2)
        assert source.bury(again, "no use")
        with Admin(rocketmq) as admin:
            letters = admin.read_soon(f"%DLQ%{tenant.settings.namespace}%{GROUP}")
            assert [letter.properties["UNIQ_KEY"] for letter in letters] == [half.half_id]


def test_each_tenant_is_asked_about_its_own_halves(tenants: tuple[Tenant, Tenant], topic: str) -> None:
    # Given a half of each tenant, and a listener for each
    halves = [prepare_one(tenant.broker, message(topic)) for tenant in tenants]
    asked = [Asked(lambda check, answer: answer(Verdict.COMMIT, soon())) for _ in tenants]
    for tenant, listener in zip(tenants, asked, strict=True):
        tenant.broker.listen([topic], listener, [f"{GROUP}-before"])
        expect_soon(tenant.broker.checks_ready, "the listener is registered", within=DEADLINE)
    # When the broker asks; Then each hears of its own half, by bare names, and its answer is confirmed
    for listener, half in zip(asked, halves, strict=True):
        expect_soon(lambda listener=listener: bool(listener.answers), "it is asked", within=DEADLINE)  # type: ignore[misc]
        asked_about = {(check.half.topic, check.half.half_id, check.half.group) for check in listener.checks}
        assert asked_about == {(topic, half.half_id, half.group)}
        half_id, ended = listener.answers[0]
        assert (half_id, ended.confirmation) == (half.half_id, Confirmation.CONFIRMED)


def test_look_ups_and_the_ledger_see_one_namespace(tenants: tuple[Tenant, Tenant], topic: str) -> None:
    # Given a message of one tenant, and a half that the other one rolled back
    here, there = tenants
    since = now()
    ours, theirs = publish(here.broker, message(topic, key="order-1")), prepare_one(there.broker, message(topic))
    assert end_one(there.broker, theirs, Verdict.ROLLBACK).confirmation is Confirmation.CONFIRMED
    # When both are looked up; Then each is what it is, and ours is not in the other namespace
    expect_soon(lambda: look_up(here.broker, ours, since) is Sighting.VISIBLE, "the look-up sees it", within=DEADLINE)
    expect_soon(lambda: look_up(there.broker, theirs, since) is Sighting.ABSENT, "theirs is absent", within=DEADLINE)
    assert look_up(there.broker, ours, since) is not Sighting.VISIBLE
    # And the same holds for an audit, by identity and of the whole topic
    wanted = [Wanted(topic, "order-1", ours.half_id, since)]
    for tenant, expected in ((here, [(topic, ours.half_id)]), (there, [])):
        assert tenant.ledger.knows(topic)
        (copies,) = tenant.ledger.copies(wanted)
        assert [(seen.topic, seen.unique_id) for seen in copies.messages] == expected
        everything = tenant.ledger.messages(topic, now().replace(year=2001), now().replace(year=2101))
        assert [(seen.topic, seen.unique_id) for seen in everything] == expected
