"""Contract of a ``Source`` of an orderly group: one delivery of a lane at a time, in the lane's order."""

import pytest

from outbox.brokers.base import Outgoing
from outbox.brokers.source import Delivery, Source
from outbox.errors import SettingsError
from tests.contracts.rig import (
    Rig,
    answer_in_time,
    attempts_of,
    ids,
    message,
    receive_all,
    receive_until,
    send_all,
)
from tests.waiting import expect_soon

#: Seconds; longer than any wait for a delivery.
LONG = 300.0


@pytest.fixture
def topic(plain_topic: str) -> str:
    """A FIFO topic, where transports tell these apart."""
    return plain_topic


@pytest.fixture
def orderly(rig: Rig) -> Rig:
    """A transport that has orderly groups."""
    if not rig.orderly:
        pytest.skip("this transport refuses orderly groups: see the first test")
    return rig


def send(rig: Rig, topic: str, *lanes: str) -> list[Outgoing]:
    """Sends one message for each lane named, one after another, and waits until they are visible."""
    batch = [message(topic, lane=lane) for lane in lanes]
    broker = rig.open(rig.fresh_group())
    for outgoing in batch:
        send_all(broker, [outgoing])
    wanted = {outgoing.unique_id for outgoing in batch}
    expect_soon(lambda: wanted <= set(ids(rig, topic)), "the messages are visible", within=rig.deadline)
    return batch


def by_id(deliveries: list[Delivery]) -> dict[str, Delivery]:
    return {delivery.unique_id: delivery for delivery in deliveries}


def nothing_more(source: Source) -> bool:
    """Nothing else is given out while the deliveries of a moment ago are."""
    return source.receive(limit=10, wait=0.5) == []


def test_a_transport_keeps_order_or_refuses(rig: Rig, topic: str, group: str) -> None:
    # Given a transport / When an orderly group is asked for
    if not rig.orderly:
        # Then it says at once that it has none
        with pytest.raises(SettingsError, match="OUTBOX_ORDERLY"):
            rig.orderly_source(topic, group, LONG)
        return
    # Then its deliveries name their lanes, which those of an ordinary group do not
    send(rig, topic, "one")
    (ordered,) = receive_all(rig, rig.orderly_source(topic, group, LONG), 1)
    (ordinary,) = receive_all(rig, rig.source(topic, rig.fresh_group(), LONG), 1)
    assert ordered.lane
    assert ordinary.lane is None


def test_one_of_a_lane_is_out_at_a_time_and_others_pass(orderly: Rig, topic: str, group: str) -> None:
    # Given three messages of one lane and two of another, in different queues
    first, second, third, other, another = send(orderly, topic, "one", "one", "one", "two", "two")
    source = orderly.orderly_source(topic, group, LONG)
    # When as much as possible is received; Then it is the head of each lane
    out = by_id(receive_all(orderly, source, 2))
    assert set(out) == {first.unique_id, other.unique_id}
    assert nothing_more(source)
    assert len({delivery.lane for delivery in out.values()}) == 2
    # When one is acknowledged; Then its follower comes, and only that one
    for follower in (second, third):
        previous = first if follower is second else second
        assert source.acknowledge(out[previous.unique_id]) is True
        (delivery,) = receive_all(orderly, source, 1)
        assert (delivery.unique_id, delivery.attempt) == (follower.unique_id, 1)
        assert delivery.lane == out[first.unique_id].lane
        out[delivery.unique_id] = delivery
    assert nothing_more(source)
    assert source.acknowledge(out[other.unique_id]) is True
    assert receive_all(orderly, source, 1)[0].unique_id == another.unique_id


def test_what_is_given_back_holds_its_lane(orderly: Rig, topic: str, group: str) -> None:
    # Given the heads of two lanes
    first, second, other, another = send(orderly, topic, "one", "one", "two", "two")
    source = orderly.orderly_source(topic, group, LONG)
    out = by_id(receive_all(orderly, source, 2))
    # When one is given back for a while, twice, and the other lane goes on
    assert source.later(out[first.unique_id], orderly.delays[0]) is True
    assert source.acknowledge(out[other.unique_id]) is True
    again = by_id(receive_all(orderly, source, 2))
    attempts = {unique_id: delivery.attempt for unique_id, delivery in again.items()}
    assert attempts == {first.unique_id: 2, another.unique_id: 1}
    assert source.later(again[first.unique_id], orderly.delays[0]) is True
    # Then it comes again and again before its follower, counted
    third_time = receive_until(orderly, source, first.unique_id, attempt=3)
    assert second.unique_id not in by_id(third_time)
    assert source.acknowledge(third_time[-1]) is True
    assert receive_until(orderly, source, second.unique_id, attempt=1)


def test_what_expires_comes_again_before_its_followers(orderly: Rig, topic: str, group: str) -> None:
    # Given a delivery that nobody says anything about
    first, second = send(orderly, topic, "one", "one")
    source = orderly.orderly_source(topic, group, orderly.short_invisible)
    (lost,) = receive_all(orderly, source, 1)
    # When its time is over; Then another member gets it again, and not its follower
    other = orderly.orderly_source(topic, group, LONG)
    again = receive_until(orderly, other, first.unique_id, attempt=2)
    assert second.unique_id not in by_id(again)
    assert again[-1].lane == lost.lane
    # And the follower once that one is done
    assert other.acknowledge(again[-1]) is True
    assert receive_until(orderly, other, second.unique_id, attempt=1)


def test_a_renewed_delivery_holds_its_lane(orderly: Rig, topic: str, group: str) -> None:
    # Given two lanes, and a head that was renewed
    renewed, follower, witness = send(orderly, topic, "one", "one", "two")
    source = orderly.orderly_source(topic, group, orderly.short_invisible)
    _, ours, before = answer_in_time(orderly, source, renewed.unique_id, lambda it: source.renew(it, LONG))
    assert ours is not None
    # When the other lane's head has come again
    again = receive_until(orderly, source, witness.unique_id, attempt=attempts_of(witness.unique_id, before) + 1)
    # Then the lane still waits, until the renewed one is acknowledged
    assert follower.unique_id not in by_id(again)
    assert source.acknowledge(ours) is True
    assert receive_until(orderly, source, follower.unique_id, attempt=1)


def test_a_buried_delivery_lets_its_lane_go_on(orderly: Rig, topic: str, group: str) -> None:
    # Given a head that failed once
    first, second = send(orderly, topic, "one", "one")
    source = orderly.orderly_source(topic, group, LONG)
    (delivery,) = receive_all(orderly, source, 1)
    assert source.later(delivery, 0.0) is True
    again = receive_until(orderly, source, first.unique_id, attempt=2)[-1]
    # When it is buried; Then its follower comes, with no attempt counted, and the dead letter is there
    assert source.bury(again, "cannot be read") is True
    assert receive_until(orderly, source, second.unique_id, attempt=1)
    letters = f"%DLQ%{group}"
    expect_soon(lambda: first.unique_id in ids(orderly, letters), "the dead letter is there", within=orderly.deadline)


def test_members_share_the_lanes_and_keep_their_order(orderly: Rig, topic: str, group: str) -> None:
    # Given lanes with several messages each, and two members
    lanes = [str(number) for number in range(5)] * 4
    batch = send(orderly, topic, *lanes)
    members = [orderly.orderly_source(topic, group, LONG) for _ in range(2)]
    # When both receive in turn, and acknowledge what the other one has meanwhile seen
    received: list[str] = []
    out: list[tuple[Source, Delivery]] = []

    def one_round() -> bool:
        for member in members:
            fresh = member.receive(limit=10, wait=0.1)
            busy = {delivery.lane for _, delivery in out}
            assert busy.isdisjoint(delivery.lane for delivery in fresh)
            out.extend((member, delivery) for delivery in fresh)
        for member, delivery in out:
            assert member.acknowledge(delivery) is True
            received.append(delivery.unique_id)
        out.clear()
        return len(received) >= len(batch)

    expect_soon(one_round, "everything is acknowledged", within=orderly.deadline)
    # Then each message came once, and each lane in its order
    place = {outgoing.unique_id: number for number, outgoing in enumerate(batch)}
    for lane in set(lanes):
        seen = [place[each] for each in received if batch[place[each]].lane == lane]
        assert seen == [number for number, name in enumerate(lanes) if name == lane]


def test_a_closed_member_gives_back_what_it_never_gave_out(orderly: Rig, topic: str, group: str) -> None:
    # Given more lanes, than a member has asked for
    send(orderly, topic, *map(str, range(12)))
    queues = {seen.queue for seen in orderly.visible(topic)}
    leaving = orderly.orderly_source(topic, group, LONG)
    (kept,) = receive_all(orderly, leaving, 1)
    # When it closes; Then another member need not wait for the lanes that it never gave out
    leaving.close()
    source = orderly.orderly_source(topic, group, LONG)
    free: set[str | None] = set()

    def every_other_lane_came() -> bool:
        for delivery in source.receive(limit=10, wait=0.5):
            assert source.acknowledge(delivery) is True
            free.add(delivery.lane)
        return len(free) == len(queues) - 1

    expect_soon(every_other_lane_came, "the other lanes come", within=orderly.deadline)
    assert kept.lane not in free
