"""POP consumption on a real broker: what the contract suite does not ask about."""

from collections.abc import Iterator

import pytest

from outbox.brokers.base import Outgoing
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.pop import PopSource
from outbox.brokers.source import Delivery
from outbox.clock import monotonic
from outbox.identity import fresh_token, unique_ids
from tests.contracts.rig import send_all
from tests.services.rocketmq import create_topics
from tests.services.rocketmq.admin import Admin

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE = 90.0
#: Seconds; longer than any wait for a delivery.
LONG = 300.0
SHORT = 2.0


@pytest.fixture
def topics(rocketmq: str) -> list[str]:
    names = [f"pop-{fresh_token()}" for _ in range(2)]
    create_topics(rocketmq, names, queues=4)
    return names


@pytest.fixture
def group() -> str:
    return f"group-{fresh_token()}"


def send(namesrv: str, topic: str, *, count: int = 1, tag: str | None = None, body: bytes = b"body") -> list[str]:
    """Sends plain messages; their ids."""
    broker = RemotingBroker(namesrv, "pop-tests")
    batch = [Outgoing(topic, body, unique_ids.fresh(), "key", tag) for _ in range(count)]
    send_all(broker, batch)
    broker.close()
    return [outgoing.unique_id for outgoing in batch]


def receive(source: PopSource, wanted: int) -> list[Delivery]:
    """Receives until there are ``wanted`` deliveries."""
    got: list[Delivery] = []
    end = monotonic() + DEADLINE
    while len(got) < wanted:
        assert monotonic() < end, f"{len(got)} of {wanted} within {DEADLINE} s"
        got += source.receive(wanted - len(got), 0.5)
    return got


@pytest.fixture
def source(rocketmq: str, group: str, topics: list[str]) -> Iterator[PopSource]:
    opened = PopSource(rocketmq, group, topics, invisible=LONG)
    yield opened
    opened.close()


def test_a_second_attempt_ends_like_a_first_one(rocketmq: str, group: str, topics: list[str]) -> None:
    # Given four messages in their second attempt, or a later one where the machine stood still
    send(rocketmq, topics[0], count=4)
    first = PopSource(rocketmq, group, [topics[0]], invisible=SHORT)
    receive(first, 4)
    first.close()
    source = PopSource(rocketmq, group, [topics[0]], invisible=LONG)
    acknowledged, renewed, buried, kept = receive(source, 4)
    assert min(each.attempt for each in (acknowledged, renewed, buried, kept)) >= 2
    assert {each.topic for each in (acknowledged, renewed, buried, kept)} == {topics[0]}
    # When one is acknowledged, one renewed and then acknowledged, one buried, one given back
    assert source.acknowledge(acknowledged)
    ours = source.renew(renewed, LONG)
    assert ours is not None
    assert source.acknowledge(ours)
    assert source.bury(buried, "no use")
    assert source.later(kept, 0.1)
    # Then the last one comes once more, alone, and the buried one is a dead letter
    (again,) = receive(source, 1)
    assert (again.unique_id, again.attempt) == (kept.unique_id, kept.attempt + 1)
    with Admin(rocketmq) as admin:
        letters = [message.properties["UNIQ_KEY"] for message in admin.read_soon(f"%DLQ%{group}")]
    assert letters == [buried.unique_id]
    source.close()


def test_topics_of_one_source_are_received_together(rocketmq: str, topics: list[str], source: PopSource) -> None:
    # Given messages in two topics; When one source receives; Then it gets all, and acknowledges all at once
    wanted = {(topic, each) for topic in topics for each in send(rocketmq, topic, count=20)}
    got = receive(source, 40)
    assert {(delivery.topic, delivery.unique_id) for delivery in got} == wanted
    assert all(source.acknowledge_all(got))


def test_only_the_tags_that_were_asked_for(rocketmq: str, group: str, topics: list[str]) -> None:
    # Given messages with three tags; When two tags are asked for; Then only these come
    ids = {tag: send(rocketmq, topics[0], tag=tag)[0] for tag in ("paid", "sent", "lost")}
    source = PopSource(rocketmq, group, {topics[0]: "paid || lost"}, invisible=LONG)
    assert {delivery.unique_id for delivery in receive(source, 2)} == {ids["paid"], ids["lost"]}
    source.close()


def test_a_closed_poll_swallows_nothing(rocketmq: str, group: str, topics: list[str]) -> None:
    # Given a source that waits at the broker and is closed while it does
    waiting = PopSource(rocketmq, group, [topics[0]], invisible=600)
    assert waiting.receive(limit=1, wait=0.2) == []
    waiting.close()
    # When a message is sent afterwards; Then another member of the group gets it, as its first attempt
    (wanted,) = send(rocketmq, topics[0])
    other = PopSource(rocketmq, group, [topics[0]], invisible=LONG)
    (delivery,) = receive(other, 1)
    assert (delivery.unique_id, delivery.attempt) == (wanted, 1)
    assert other.acknowledge(delivery)
    other.close()


def test_every_message_is_acknowledged_once(rocketmq: str, topics: list[str], group: str) -> None:
    # Given 500 messages; When they are received in batches and acknowledged at once
    wanted = send(rocketmq, topics[0], count=500)
    source = PopSource(rocketmq, group, [topics[0]], invisible=LONG)
    got: list[str] = []
    end = monotonic() + DEADLINE
    while len(got) < len(wanted) and monotonic() < end:
        batch = source.receive(32, 0.5)
        assert all(source.acknowledge_all(batch))
        got += [delivery.unique_id for delivery in batch]
    # Then each came once
    assert sorted(got) == sorted(wanted)
    source.close()


def test_the_broker_s_settings_show_no_secrets(rocketmq: str) -> None:
    # Given a broker; When its settings are asked for; Then only the named ones come
    with Admin(rocketmq) as admin:
        (address,) = admin.brokers().values()
        assert admin.config(address, ["messageIndexEnable"]) == {"messageIndexEnable": "true"}
        assert int(admin.runtime(address)["commitLogMaxOffset"]) >= 0
