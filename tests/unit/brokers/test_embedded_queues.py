"""The embedded broker's consumer groups, under a clock that the test sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.brokers.base import BrokerClosed
from outbox.brokers.embedded import EmbeddedSource
from outbox.brokers.source import Delivery
from tests.unit.brokers.embedded_bench import TOPIC, Bench, bench_in, message

INVISIBLE = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench with RocketMQ's own times."""
    yield from bench_in(tmp_path)


def receive_one(source: EmbeddedSource) -> Delivery:
    """The one delivery that is due."""
    (delivery,) = source.receive(limit=10, wait=0)
    return delivery


def test_sixteen_lapses_then_the_dead_letter_topic(bench: Bench) -> None:
    # Given a message that every attempt fails on, without a word
    outgoing = message(b"bad")
    bench.broker().send([outgoing], timeout=60)
    source, inspector = bench.source(invisible=INVISIBLE), bench.inspector()
    # When the first delivery and sixteen retries have lapsed
    for attempt in range(1, 18):
        assert receive_one(source).attempt == attempt
        assert inspector.dead_letters("points") == []
        bench.clock.advance(INVISIBLE)
    # Then it is not delivered again, and lies in the dead-letter topic with where it came from
    assert source.receive(limit=10, wait=0) == []
    (letter,) = inspector.dead_letters("points")
    assert (letter.unique_id, letter.body) == (outgoing.unique_id, b"bad")
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == TOPIC
    # And another group is not concerned
    assert receive_one(bench.source("stock")).attempt == 1


def test_sixteen_returns_then_the_dead_letter_topic(bench: Bench) -> None:
    # Given a message that every attempt gives back for longer
    bench.broker().send([message()], timeout=60)
    source, inspector = bench.source(), bench.inspector()
    for attempt in range(1, 17):
        delivery = receive_one(source)
        assert delivery.attempt == attempt
        assert source.later(delivery, delay=10.0 * attempt) is True
        # When its delay is not over; Then it does not come
        bench.clock.advance(10.0 * attempt - 1)
        assert source.receive(limit=10, wait=0) == []
        bench.clock.advance(1)
    # When the seventeenth attempt gives it back too; Then it goes to the dead-letter topic at once
    assert source.later(receive_one(source), delay=10.0) is True
    assert len(inspector.dead_letters("points")) == 1
    bench.clock.advance(10_000)
    assert source.receive(limit=10, wait=0) == []


def test_a_receipt_is_good_once_and_in_time(bench: Bench) -> None:
    # Given a delivery
    bench.broker().send([message(), message()], timeout=60)
    source = bench.source(invisible=INVISIBLE)
    first, second = source.receive(limit=10, wait=0)
    # When it is renewed; Then only the new receipt counts
    renewed = source.renew(first, INVISIBLE)
    assert renewed is not None
    assert renewed.receipt != first.receipt
    for refused in (source.acknowledge, lambda d: source.later(d, 1), lambda d: source.bury(d, "x")):
        assert refused(first) is False
    assert source.renew(first, INVISIBLE) is None
    # When it was acknowledged; Then it cannot be again
    assert source.acknowledge(renewed) is True
    assert source.acknowledge(renewed) is False
    # When its time is over, though nobody else has received it yet; Then it is not ours any more
    bench.clock.advance(INVISIBLE)
    assert source.acknowledge(second) is False
    assert source.renew(second, INVISIBLE) is None
    assert receive_one(source).attempt == 2
    assert bench.inspector().dead_letters("points") == []


def test_a_receipt_of_another_group_is_no_good(bench: Bench) -> None:
    # Given a delivery to one group; When another group acknowledges it; Then it has no effect
    bench.broker().send([message()], timeout=60)
    delivery = receive_one(bench.source("points"))
    assert bench.source("stock").acknowledge(delivery) is False


def test_keys_are_split_as_the_broker_splits_them(bench: Bench) -> None:
    # Given a message with two keys; When it is received; Then there are two
    bench.broker().send([message(key="order-1 customer-2")], timeout=60)
    assert receive_one(bench.source()).keys == ("order-1", "customer-2")


def test_what_is_old_leaves_the_queue_unread(bench: Bench) -> None:
    # Given a message in delivery and one that nobody has read, both older than the retention
    bench.broker().send([message(), message()], timeout=60)
    source = bench.source()
    (delivery,) = source.receive(limit=1, wait=0)
    bench.clock.advance(bench.timing.retention + 60)
    # When received again; Then there is nothing, and the old delivery is nobody's
    assert source.receive(limit=10, wait=0) == []
    assert source.acknowledge(delivery) is False


def test_a_closed_source_says_so(bench: Bench) -> None:
    # Given a closed source; When received from; Then it raises
    source = bench.source()
    source.close()
    with pytest.raises(BrokerClosed):
        source.receive(limit=1, wait=0)


def test_a_source_on_a_file_that_is_away_receives_nothing(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a source on a file that cannot be opened; When received from; Then an outage is no exception
    source = EmbeddedSource(tmp_path / "missing" / "broker.db", "points", [TOPIC])
    assert source.receive(limit=1, wait=0) == []
    assert "nothing received" in caplog.text
    source.close()


def test_a_source_needs_a_group_and_a_topic(tmp_path: Path) -> None:
    # Given no group or no topic; When a source is made; Then the mistake is named
    with pytest.raises(ValueError, match="name the consumer group"):
        EmbeddedSource(tmp_path / "broker.db", "", [TOPIC])
    with pytest.raises(ValueError, match="at least one topic"):
        EmbeddedSource(tmp_path / "broker.db", "points", [])


def in_lanes(bench: Bench, *lanes: str) -> dict[str, list[str]]:
    """Sends one message for each lane named; the unique ids of each lane, in order."""
    sent: dict[str, list[str]] = {}
    for lane in lanes:
        outgoing = message(lane=lane)
        bench.broker().send([outgoing], timeout=60)
        sent.setdefault(lane, []).append(outgoing.unique_id)
    return sent


def test_an_orderly_group_retries_in_place_until_the_dead_letter(bench: Bench) -> None:
    # Given a lane whose head lapses at each attempt
    sent = in_lanes(bench, "one", "one", "two")
    source, inspector = bench.source(invisible=INVISIBLE, orderly=True), bench.inspector()
    for attempt in range(1, 18):
        out = {delivery.unique_id: delivery.attempt for delivery in source.receive(limit=10, wait=0)}
        assert out == {sent["one"][0]: attempt, sent["two"][0]: attempt}
        bench.clock.advance(INVISIBLE)
    # When its retries are used up; Then it is a dead letter, and its follower comes for the first time
    follower = receive_one(source)
    assert (follower.unique_id, follower.attempt) == (sent["one"][1], 1)
    assert {letter.unique_id for letter in inspector.dead_letters("points")} == {sent["one"][0], sent["two"][0]}


def test_a_lane_that_comes_again_is_not_starved_by_new_ones(bench: Bench) -> None:
    # Given a head that waits, and new messages of another lane all the time
    sent = in_lanes(bench, "one", "two", "two", "two")
    source = bench.source(orderly=True)
    out = {delivery.unique_id: delivery for delivery in source.receive(limit=10, wait=0)}
    assert source.later(out[sent["one"][0]], 5.0) is True
    assert source.acknowledge(out[sent["two"][0]]) is True
    bench.clock.advance(5.0)
    # When one is asked for; Then it is the older one
    (first,) = source.receive(limit=1, wait=0)
    assert (first.unique_id, first.attempt) == (sent["one"][0], 2)


def test_a_group_may_become_orderly_and_loses_nothing(bench: Bench) -> None:
    # Given an ordinary group that holds one message, and has not seen two others
    sent = in_lanes(bench, "one")
    held = receive_one(bench.source(invisible=INVISIBLE))
    later = in_lanes(bench, "one", "two")
    # When it goes on as an orderly one; Then what is held holds its lane
    source = bench.source(orderly=True)
    (other,) = source.receive(limit=10, wait=0)
    assert other.unique_id == later["two"][0]
    assert bench.inspector().backlog("points", TOPIC) == 3
    assert source.acknowledge(other) is True
    # And comes again before its followers
    bench.clock.advance(INVISIBLE)
    again = receive_one(source)
    assert (again.unique_id, again.attempt) == (held.unique_id, 2)
    assert [again.unique_id] == sent["one"]
    assert source.acknowledge(again) is True
    assert receive_one(source).unique_id == later["one"][0]
