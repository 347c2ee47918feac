"""Contract of every ``Broker``: halves, their endings, and what becomes visible."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.brokers.base import SHARDING_KEY, BrokerClosed, Ending, Outgoing, Refused, Stored
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import (
    PATIENCE,
    Rig,
    end_one,
    ids,
    message,
    outcomes_of,
    prepare_all,
    prepare_one,
    publish,
    settled_ids,
    stored,
)
from tests.waiting import expect_soon

EVERY_BYTE = bytes(range(256))


def test_it_says_what_it_can_do(rig: Rig, group: str) -> None:
    # Given a transport; When it is asked; Then it says what the table of transports says
    broker = rig.open(group)
    assert broker.capabilities == rig.capabilities
    assert broker.capabilities.check_scope in {"group", "topic"}
    assert broker.group == group


def test_a_half_names_what_ends_it(rig: Rig, topic: str, group: str) -> None:
    # Given a broker; When a half is stored
    outgoing = message(topic)
    half = prepare_one(rig.open(group), outgoing)
    # Then it carries its own identity (a proxy's producer group is the topic), and a handle that fits the column
    owner = group if rig.capabilities.check_scope == "group" else topic
    assert (half.topic, half.half_id, half.group) == (topic, outgoing.unique_id, owner)
    assert half.broker
    assert 0 < len(half.handle) <= 255


def test_a_half_is_invisible_until_commit(rig: Rig, topic: str, group: str) -> None:
    # Given a half that nobody has ended
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    assert settled_ids(rig, broker, topic) == []
    # When it is committed
    end_one(broker, half, Verdict.COMMIT)
    # Then there is one message
    expect_soon(lambda: half.half_id in ids(rig, topic), "the message is visible", within=rig.deadline)
    assert settled_ids(rig, broker, topic).count(half.half_id) == 1


def test_the_answer_to_an_ending_is_a_confirmation_or_is_denied_by_the_capabilities(
    rig: Rig, topic: str, group: str
) -> None:
    # Given two halves
    broker = rig.open(group)
    first, second = prepare_all(broker, [message(topic), message(topic)])
    # When one is committed and one is rolled back
    endings = [Ending(first, Verdict.COMMIT), Ending(second, Verdict.ROLLBACK)]
    answers = {ended.confirmation for ended in broker.resolve(endings, until=monotonic() + PATIENCE)}
    # Then both are confirmed, or neither ever is
    assert answers == {Confirmation.CONFIRMED if rig.capabilities.confirms else Confirmation.UNANSWERED}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"body": b"plain", "tag": "paid", "properties": {"colour": "blue"}}, id="everything"),
        pytest.param({"properties": {}}, id="no properties"),
        pytest.param({"key": "заказ-42-订单-é"}, id="unicode key"),
        pytest.param({"properties": {"name": "Zoë 北京 🚀", "outbox-token": "a1b2"}}, id="unicode property"),
        pytest.param({"lane": None}, id="no lane"),
        pytest.param({"body": b"x" * 200_000}, id="200 KB"),
    ],
)
def test_the_message_is_what_was_sent(rig: Rig, topic: str, group: str, fields: dict[str, object]) -> None:
    # Given a message with these fields
    broker = rig.open(group)
    outgoing = message(topic, **fields)
    # When it is published
    publish(broker, outgoing)
    expect_soon(lambda: outgoing.unique_id in ids(rig, topic), "the message is visible", within=rig.deadline)
    # Then nothing of it has changed
    (seen,) = rig.visible(topic)
    assert (seen.unique_id, seen.key, seen.tag) == (outgoing.unique_id, outgoing.key, outgoing.tag)
    assert seen.body == outgoing.body
    assert outgoing.properties.items() <= seen.properties.items()


@pytest.mark.parametrize(
    "body", [EVERY_BYTE * 20, b"\0", b"a\0b", b"\0" * 5000], ids=["every byte", "zero", "zero inside", "zeros"]
)
def test_bodies_pass_byte_for_byte(rig: Rig, topic: str, group: str, body: bytes) -> None:
    # Given a body that is no text
    broker = rig.open(group)
    outgoing = message(topic, body=body)
    # When it is sent
    end_one(broker, prepare_one(broker, outgoing), Verdict.COMMIT)
    # Then it arrives whole
    expect_soon(lambda: ids(rig, topic) == [outgoing.unique_id], "the message is visible", within=rig.deadline)
    assert rig.visible(topic)[0].body == body


def test_rollback_leaves_nothing(rig: Rig, topic: str, group: str) -> None:
    # Given a half
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    # When it is rolled back
    end_one(broker, half, Verdict.ROLLBACK)
    # Then there is no message
    assert settled_ids(rig, broker, topic) == []


def test_a_bad_message_harms_no_other(rig: Rig, topic: str, group: str) -> None:
    # Given a message that no broker stores, among good ones
    broker = rig.open(group)
    batch = [message(topic, body=b"x" * (5 << 20) if number == 3 else b"good") for number in range(7)]
    # When they are sent together
    outcomes = outcomes_of(broker.prepare, batch)
    # Then the outcomes are in order, and only the bad one is refused
    assert [type(outcome) for outcome in outcomes] == [Refused if n == 3 else Stored for n in range(7)]
    halves = [stored(outcome) for n, outcome in enumerate(outcomes) if n != 3]
    good = [outgoing.unique_id for n, outgoing in enumerate(batch) if n != 3]
    assert [half.half_id for half in halves] == good
    # And the good ones become visible
    broker.resolve([Ending(half, Verdict.COMMIT) for half in halves], until=monotonic() + PATIENCE)
    expect_soon(lambda: sorted(ids(rig, topic)) == sorted(good), "the good ones are visible", within=rig.deadline)


def test_a_refusal_says_why(rig: Rig, topic: str, group: str) -> None:
    # Given a body over the limit; When it is sent; Then the reason is not empty
    (outcome,) = outcomes_of(rig.open(group).prepare, [message(topic, body=b"x" * (5 << 20))])
    assert isinstance(outcome, Refused)
    assert outcome.reason


def test_nothing_asked_nothing_said(rig: Rig, group: str) -> None:
    # Given a broker; When it is given empty lists; Then it returns empty lists
    broker = rig.open(group)
    assert broker.prepare([], timeout=1) == []
    assert broker.send([], timeout=1) == []
    assert broker.resolve([], until=monotonic() + 1) == []


def test_a_large_batch_keeps_its_order(rig: Rig, topic: str, group: str) -> None:
    # Given more messages than a pass claims
    broker = rig.open(group)
    batch = [message(topic, lane=None) for _ in range(300)]
    # When they are prepared, and every third is rolled back
    halves = prepare_all(broker, batch)
    assert [half.half_id for half in halves] == [outgoing.unique_id for outgoing in batch]
    verdicts = [Verdict.ROLLBACK if number % 3 == 0 else Verdict.COMMIT for number in range(300)]
    endings = [Ending(half, verdict) for half, verdict in zip(halves, verdicts, strict=True)]
    ended = broker.resolve(endings, until=monotonic() + PATIENCE)
    # Then each is answered, and exactly the committed ones become visible
    assert len(ended) == len(endings)
    wanted = {half.half_id for half, verdict in zip(halves, verdicts, strict=True) if verdict is Verdict.COMMIT}
    expect_soon(lambda: len(ids(rig, topic)) >= len(wanted), "all are visible", within=rig.deadline)
    assert sorted(ids(rig, topic)) == sorted(wanted)


def test_a_lane_keeps_to_one_queue_in_order(rig: Rig, topic: str, group: str) -> None:
    # Given two connections that share a lane
    brokers = [rig.open(group), rig.open(group)]
    batch = [message(topic, lane="order-42") for _ in range(12)]
    # When its messages are published one after another
    for number, outgoing in enumerate(batch):
        publish(brokers[number % 2], outgoing)
    expect_soon(lambda: len(ids(rig, topic)) == len(batch), "all are visible", within=rig.deadline)
    # Then they lie in one queue, in order, and say which lane they are of
    seen = rig.visible(topic)
    assert len({each.queue for each in seen}) == 1
    assert {each.properties[SHARDING_KEY] for each in seen} == {"order-42"}
    assert [each.unique_id for each in seen] == [outgoing.unique_id for outgoing in batch]


def test_one_connection_serves_several_threads(rig: Rig, topic: str, group: str) -> None:
    # Given one connection
    broker = rig.open(group)
    # When four threads publish over it at once
    with ThreadPoolExecutor(4) as pool:
        published = [half.half_id for half in pool.map(lambda _: publish(broker, message(topic)), range(40))]
    # Then every message is there, once
    expect_soon(lambda: set(published) <= set(ids(rig, topic)), "all are visible", within=rig.deadline)
    assert sorted(settled_ids(rig, broker, topic)) == sorted(published)


def test_close_is_final_and_may_be_repeated(rig: Rig, topic: str, group: str) -> None:
    # Given a closed connection
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    broker.close()
    broker.close()
    # When it is used; Then it says so
    outgoing: Outgoing = message(topic)
    with pytest.raises(BrokerClosed):
        broker.prepare([outgoing], timeout=1)
    with pytest.raises(BrokerClosed):
        broker.send([outgoing], timeout=1)
    with pytest.raises(BrokerClosed):
        broker.resolve([Ending(half, Verdict.COMMIT)], until=monotonic() + 1)
    with pytest.raises(BrokerClosed):
        broker.listen([topic], lambda check, answer: None)
    # And nothing was written
    assert settled_ids(rig, rig.open(group), topic) == []
