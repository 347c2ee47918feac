"""Contract of every ``Broker``: plain sends, look-ups, and a broker that is away."""

from datetime import UTC, datetime, timedelta
from functools import partial

from outbox.brokers.base import Ending, Outage, Refused, Sent, Sought, Stored, Unknown
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.timer import Timer
from outbox.verdict import Confirmation, Sighting
from tests.contracts.rig import (
    PATIENCE,
    Rig,
    end_one,
    ids,
    look_up,
    message,
    now,
    outcomes_of,
    prepare_one,
    publish,
    settled_ids,
    soon,
)
from tests.waiting import expect_soon


def test_a_plain_message_is_visible_once(rig: Rig, plain_topic: str, group: str) -> None:
    # Given a broker; When a plain message is sent
    broker = rig.open(group)
    outgoing = message(plain_topic, tag="log", properties={"a": "b"})
    outcomes = outcomes_of(broker.send, [outgoing])
    # Then it is visible, once, as it was sent
    assert outcomes == [Sent(outgoing.unique_id)]
    expect_soon(lambda: outgoing.unique_id in ids(rig, plain_topic), "the message is visible", within=rig.deadline)
    (seen,) = rig.visible(plain_topic)
    assert (seen.key, seen.tag, seen.body) == (outgoing.key, "log", outgoing.body)
    assert outgoing.properties.items() <= seen.properties.items()


def test_plain_outcomes_are_in_order(rig: Rig, plain_topic: str, group: str) -> None:
    # Given a message that no broker stores, among good ones; When they are sent together
    batch = [message(plain_topic, body=b"x" * (5 << 20) if number == 1 else b"good") for number in range(4)]
    outcomes = outcomes_of(rig.open(group).send, batch)
    # Then only it is refused
    assert [type(outcome) for outcome in outcomes] == [Sent, Refused, Sent, Sent]
    good = sorted(outgoing.unique_id for number, outgoing in enumerate(batch) if number != 1)
    expect_soon(lambda: sorted(ids(rig, plain_topic)) == good, "the good ones are visible", within=rig.deadline)


def test_the_brokers_timer_delivers_at_a_moment(rig: Rig, group: str) -> None:
    # Given a plain message for a moment that is three seconds ahead
    broker, topic = rig.open(group), rig.fresh_timed_topic()
    deliver_at = now() + timedelta(seconds=3)
    timed = message(topic, lane=None, properties=Timer(deliver_at).properties())
    # When it is sent; Then it is stored
    assert outcomes_of(broker.send, [timed]) == [Sent(timed.unique_id)]
    # And nobody sees it before its time, to which the broker's timer is true within a second
    expect_soon(lambda: ids(rig, topic) == [timed.unique_id], "the moment of delivery has come", within=rig.deadline)
    assert now() > deliver_at - timedelta(seconds=1)


def test_the_brokers_timer_delivers_after_a_level_of_delay(rig: Rig, group: str) -> None:
    # Given a plain message on the second level, which is five seconds; When it is sent
    broker, topic, sent_at = rig.open(group), rig.fresh_timed_topic(), now()
    level = message(topic, lane=None, properties=Timer(level=2).properties())
    (outcome,) = outcomes_of(broker.send, [level])
    # Then it is refused by a transport that knows no levels, or comes when they say
    if not rig.capabilities.confirms:
        assert isinstance(outcome, Refused)
        return
    expect_soon(lambda: ids(rig, topic) == [level.unique_id], "the delay is over", within=rig.deadline)
    assert now() > sent_at + timedelta(seconds=4)


def test_a_half_with_a_timer_is_lost(rig: Rig, topic: str, group: str) -> None:
    # Given a half on the first level of delay, which is what add refuses to make
    broker = rig.open(group)
    (outcome,) = outcomes_of(broker.prepare, [message(topic, properties=Timer(level=1).properties())])
    if not isinstance(outcome, Stored):  # a proxy's transport sends no levels; native seeks the half where halves are
        assert isinstance(outcome, Refused | Unknown)
        return
    # When it is committed; Then the broker confirms it, and nobody ever sees it
    assert end_one(broker, outcome.half, Verdict.COMMIT).confirmation is Confirmation.CONFIRMED
    assert settled_ids(rig, broker, topic) == []


def test_a_visible_message_is_found(rig: Rig, topic: str, group: str) -> None:
    # Given a message that was published
    broker = rig.open(group)
    half = publish(broker, message(topic))
    decided = now()
    expect_soon(lambda: ids(rig, topic) == [half.half_id], "the message is visible", within=rig.deadline)
    # When it is looked up; Then it is seen, or the transport cannot look
    if rig.capabilities.finds:
        expect_soon(
            lambda: look_up(broker, half, decided) is Sighting.VISIBLE, "the look-up sees it", within=rig.deadline
        )
    else:
        assert look_up(broker, half, decided) is Sighting.CANNOT_TELL


def test_many_halves_are_looked_up_at_once_and_in_order(rig: Rig, topic: str, group: str) -> None:
    # Given halves of which every other one was committed
    broker = rig.open(group)
    halves = [
        publish(broker, message(topic)) if number % 2 else prepare_one(broker, message(topic)) for number in range(6)
    ]
    sought = [Sought(half, now()) for half in halves]
    wanted = [Sighting.VISIBLE if number % 2 else Sighting.ABSENT for number in range(6)]
    # When they are looked up together; Then each is what it is
    if rig.capabilities.finds:
        expect_soon(lambda: broker.find(sought, soon()) == wanted, "the look-up sees them", within=rig.deadline)
    # And nothing is known once the time is over
    assert broker.find(sought, monotonic()) == [Sighting.CANNOT_TELL] * 6


def test_a_half_that_was_not_committed_is_absent(rig: Rig, topic: str, group: str) -> None:
    # Given one half that nobody ended, and one that was rolled back
    broker = rig.open(group)
    halves = [prepare_one(broker, message(topic)) for _ in range(2)]
    end_one(broker, halves[1], Verdict.ROLLBACK)
    # When they are looked up
    for half in halves:
        if rig.capabilities.finds:
            # Then both are absent
            looks = partial(look_up, broker, half)
            expect_soon(lambda of=looks: of(now()) is Sighting.ABSENT, "absent", within=rig.deadline)  # type: ignore[misc]
        else:
            assert look_up(broker, half, now()) is Sighting.CANNOT_TELL


def test_a_store_that_does_not_go_back_to_the_decision_says_so(rig: Rig, topic: str, group: str) -> None:
    # Given a half that was decided before this store came to be, as after a broker was replaced
    broker = rig.open(group)
    half = rig.nowhere(prepare_one(broker, message(topic)))
    # When it is looked up; Then its absence proves nothing, and never will
    expected = Sighting.EXPIRED if rig.capabilities.finds else Sighting.CANNOT_TELL
    assert look_up(broker, half, datetime(2001, 1, 1, tzinfo=UTC)) is expected


def test_a_broker_that_is_there_is_reachable_until_the_connection_is_closed(rig: Rig, group: str) -> None:
    broker = rig.open(group)
    assert broker.reachable(PATIENCE)
    broker.close()
    assert not broker.reachable(2)


def test_a_broker_that_is_away_stores_nothing_and_knows_nothing(rig: Rig, topic: str, group: str) -> None:
    # Given a half from better days, and a connection to a broker that cannot be reached
    half = prepare_one(rig.open(group), message(topic))
    away = rig.away(group)
    # When it is used; Then every outcome says what is known, and no call raises
    prepared = away.prepare([message(topic), message(topic)], timeout=2)
    assert [type(outcome) for outcome in prepared] == [Outage, Outage]
    (sent,) = away.send([message(topic)], timeout=2)
    assert isinstance(sent, Outage)
    (ended,) = away.resolve([Ending(half, Verdict.COMMIT)], until=monotonic() + 2)
    assert ended.confirmation is Confirmation.UNANSWERED
    assert look_up(away, half, now()) is Sighting.CANNOT_TELL
    assert not away.reachable(2)
    # And it is not ready for checks, whoever listens
    away.listen([topic], lambda check, answer: None)
    assert not away.checks_ready()
    away.close()
    assert settled_ids(rig, rig.open(group), topic) == []
