"""Contract of every ``Source``: each delivery is acknowledged, or comes again."""

import time

import pytest

from outbox.brokers.base import Outgoing
from outbox.brokers.source import Delivery, Source
from outbox.clock import monotonic
from tests.contracts.rig import Rig, answer_in_time, attempts_of, ids, message, receive_all, receive_until, send_all
from tests.waiting import expect_soon

#: Seconds; longer than any wait for a delivery.
LONG = 300.0
#: Lanes in two queues: a transport may deliver what it has pulled from one queue one after another.
ONE: dict[str, object] = {"lane": "one"}
TWO: dict[str, object] = {"lane": "two"}


@pytest.fixture
def topic(plain_topic: str) -> str:
    """What is sent here are plain messages."""
    return plain_topic


def send(rig: Rig, topic: str, *fields: dict[str, object]) -> list[Outgoing]:
    """Sends plain messages, one for each set of fields, and waits until they are visible."""
    batch = [message(topic, **each) for each in fields]
    send_all(rig.open(rig.fresh_group()), batch)
    wanted = {outgoing.unique_id for outgoing in batch}
    expect_soon(lambda: wanted <= set(ids(rig, topic)), "the messages are visible", within=rig.deadline)
    return batch


def acknowledged_ids(rig: Rig, source: Source, wanted: int) -> list[str]:
    """Receives ``wanted`` deliveries and acknowledges each as it comes; their unique ids."""
    received: list[str] = []
    while len(received) < wanted:
        (delivery,) = receive_all(rig, source, 1)
        assert source.acknowledge(delivery) is True
        received.append(delivery.unique_id)
    return received


def test_a_delivery_is_what_was_sent(rig: Rig, topic: str, group: str) -> None:
    # Given a message with everything
    body = bytes(range(256))
    fields: dict[str, object] = {"body": body, "key": "订单-1", "tag": "paid", "properties": {"name": "Zoë"}}
    (outgoing,) = send(rig, topic, fields)
    # When a new group receives
    (delivery,) = receive_all(rig, rig.source(topic, group, LONG), 1)
    # Then it starts at the beginning of the topic, with the first attempt
    assert (delivery.topic, delivery.body, delivery.unique_id) == (topic, body, outgoing.unique_id)
    assert (delivery.keys, delivery.tag, delivery.attempt) == (("订单-1",), "paid", 1)
    assert outgoing.properties.items() <= delivery.properties.items()
    assert delivery.invisible_until > monotonic()
    # And it says when it was sent
    assert delivery.born_at is not None
    assert abs(delivery.born_at - time.time()) < 600


def test_an_empty_topic_delivers_nothing(rig: Rig, topic: str, group: str) -> None:
    # Given an empty topic; When received from without waiting; Then there is nothing
    assert rig.source(topic, group, LONG).receive(limit=10, wait=0) == []


def test_no_more_than_the_limit(rig: Rig, topic: str, group: str) -> None:
    # Given five messages; When two are asked for; Then at most two come, and the others later
    send(rig, topic, *[{}] * 5)
    source = rig.source(topic, group, LONG)
    first: list[Delivery] = []
    while not first:
        first = source.receive(limit=2, wait=1)
    assert len(first) <= 2
    assert all(source.acknowledge(delivery) for delivery in first)
    rest = acknowledged_ids(rig, source, 5 - len(first))
    assert len({delivery.unique_id for delivery in first}.union(rest)) == 5


def test_acknowledged_deliveries_never_come_again(rig: Rig, topic: str, group: str) -> None:
    # Given two messages
    acknowledged, kept = send(rig, topic, ONE, TWO)
    source = rig.source(topic, group, rig.short_invisible)
    # When one is acknowledged
    _, _, before = answer_in_time(rig, source, acknowledged.unique_id, source.acknowledge)
    # Then the other one comes again, twice, and the acknowledged one does not
    again = receive_until(rig, source, kept.unique_id, attempt=attempts_of(kept.unique_id, before) + 2)
    assert {delivery.unique_id for delivery in again} == {kept.unique_id}


def test_what_is_not_acknowledged_comes_again(rig: Rig, topic: str, group: str) -> None:
    # Given a delivery that nobody acknowledges
    (outgoing,) = send(rig, topic, {"tag": "paid", "properties": {"a": "b"}})
    source = rig.source(topic, group, rig.short_invisible)
    (first,) = receive_all(rig, source, 1)
    # When its invisible time is over; Then it comes again, the same but for its attempt
    second = receive_until(rig, source, outgoing.unique_id, attempt=2)[-1]
    assert (second.topic, second.body, second.keys, second.tag) == (first.topic, first.body, first.keys, first.tag)
    assert outgoing.properties.items() <= second.properties.items()
    assert second.receipt != first.receipt


def test_an_expired_delivery_is_not_ours_any_more(rig: Rig, topic: str, group: str) -> None:
    # Given a delivery whose invisible time is over
    (outgoing,) = send(rig, topic, {})
    source = rig.source(topic, group, rig.short_invisible)
    (delivery,) = receive_all(rig, source, 1)
    expect_soon(lambda: monotonic() > delivery.invisible_until, "the invisible time is over", within=rig.deadline)
    # When it is renewed or acknowledged; Then it is neither, and it comes again
    assert source.renew(delivery, LONG) is None
    assert source.acknowledge(delivery) is False
    assert receive_until(rig, source, outgoing.unique_id, attempt=2)


def test_a_renewed_delivery_stays_ours(rig: Rig, topic: str, group: str) -> None:
    # Given two messages, a delivery of one of which was renewed
    renewed, witness = send(rig, topic, ONE, TWO)
    source = rig.source(topic, group, rig.short_invisible)
    delivery, ours, before = answer_in_time(rig, source, renewed.unique_id, lambda it: source.renew(it, LONG))
    assert ours is not None
    assert ours.invisible_until > delivery.invisible_until
    assert ours.attempt == delivery.attempt
    # When the other one has come again
    again = receive_until(rig, source, witness.unique_id, attempt=attempts_of(witness.unique_id, before) + 1)
    # Then the renewed one has not, and it can be acknowledged
    assert renewed.unique_id not in {delivery.unique_id for delivery in again}
    assert source.acknowledge(ours) is True


def test_the_receipt_before_a_renewal_has_no_effect(rig: Rig, topic: str, group: str) -> None:
    # Given a delivery that was renewed for a short while
    (outgoing,) = send(rig, topic, {})
    source = rig.source(topic, group, LONG)
    (old,) = receive_all(rig, source, 1)
    assert source.renew(old, rig.short_invisible) is not None
    # When the old receipt is acknowledged (a broker may say yes to it)
    source.acknowledge(old)
    # Then the message comes again all the same
    assert receive_until(rig, source, outgoing.unique_id, attempt=2)


def test_later_comes_after_its_delay_with_the_next_attempt(rig: Rig, topic: str, group: str) -> None:
    # Given two deliveries
    short, long = (each.unique_id for each in send(rig, topic, ONE, TWO))
    source = rig.source(topic, group, LONG)
    out = {delivery.unique_id: delivery for delivery in receive_all(rig, source, 2)}

    def come_in_order() -> bool:
        """When both are given back, the first for longer, both come again, as the next attempt."""
        assert source.later(out[long], rig.delays[1]) is True
        assert source.later(out[short], rig.delays[0]) is True
        again = receive_all(rig, source, 2)
        assert {each.unique_id: each.attempt for each in again} == {name: out[name].attempt + 1 for name in out}
        out.update((delivery.unique_id, delivery) for delivery in again)
        return [delivery.unique_id for delivery in again] == [short, long]

    # Then it is in the order of their delays, unless the machine stands still for as long as these differ
    expect_soon(come_in_order, "they come in the order of their delays", within=rig.deadline)


def test_bury_moves_to_the_dead_letter_topic(rig: Rig, topic: str, group: str) -> None:
    # Given two messages
    buried, witness = send(rig, topic, {"body": b"bad", **ONE}, TWO)
    source = rig.source(topic, group, rig.short_invisible)
    # When one is buried
    _, _, before = answer_in_time(rig, source, buried.unique_id, lambda it: source.bury(it, "cannot be read"))
    # Then it lies in the group's dead-letter topic, whole, and does not come again
    letters = f"%DLQ%{group}"
    expect_soon(lambda: buried.unique_id in ids(rig, letters), "the dead letter is there", within=rig.deadline)
    # (A delivery whose time was over between copy and acknowledgement was buried twice.)
    assert {(letter.body, letter.key) for letter in rig.visible(letters)} == {(b"bad", buried.key)}
    again = receive_until(rig, source, witness.unique_id, attempt=attempts_of(witness.unique_id, before) + 2)
    assert buried.unique_id not in {delivery.unique_id for delivery in again}


def test_two_members_never_share_a_live_delivery(rig: Rig, topic: str, group: str) -> None:
    # Given two members of one group
    if not rig.exclusive:
        pytest.skip("queues move between members together with what is out: the inbox has to absorb it")
    anywhere: dict[str, object] = {"lane": None}
    batch = send(rig, topic, *[anywhere] * 30)
    members = [rig.source(topic, group, LONG), rig.source(topic, group, LONG)]
    # When they receive in turn until all has come
    received: list[str] = []
    end = monotonic() + rig.deadline
    while len(received) < len(batch) and monotonic() < end:
        for member in members:
            received += [delivery.unique_id for delivery in member.receive(limit=4, wait=0.1)]
    # Then each message came to one of them, once
    assert sorted(received) == sorted(outgoing.unique_id for outgoing in batch)


def test_every_group_gets_everything(rig: Rig, topic: str, group: str) -> None:
    # Given two groups, of which one has acknowledged everything
    batch = send(rig, topic, *[{}] * 5)
    wanted = sorted(outgoing.unique_id for outgoing in batch)
    assert sorted(acknowledged_ids(rig, rig.source(topic, group, LONG), 5)) == wanted
    # When the other one receives; Then it gets the same
    assert sorted(acknowledged_ids(rig, rig.source(topic, rig.fresh_group(), LONG), 5)) == wanted


def test_deliveries_of_a_closed_member_come_again(rig: Rig, topic: str, group: str) -> None:
    # Given a member that closed without acknowledging
    (outgoing,) = send(rig, topic, {})
    leaving = rig.source(topic, group, rig.short_invisible)
    receive_all(rig, leaving, 1)
    leaving.close()
    leaving.close()
    # When its invisible time is over; Then another member gets it
    assert receive_until(rig, rig.source(topic, group, LONG), outgoing.unique_id, attempt=2)
