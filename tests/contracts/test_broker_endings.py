"""Contract of every ``Broker``: ending halves by their handles, and the broker's no."""

from dataclasses import replace

import pytest

from outbox.brokers.base import Ending
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import PATIENCE, Rig, end_one, ids, message, prepare_all, prepare_one, publish, settled_ids
from tests.waiting import expect_soon


def test_commit_twice_makes_two_messages(rig: Rig, topic: str, group: str) -> None:
    # Given a committed half: the broker keeps no final state
    broker = rig.open(group)
    half = publish(broker, message(topic))
    # When it is committed again
    ended = end_one(broker, half, Verdict.COMMIT)
    # Then there are two: this is why a repeated commit needs a look-up; unless the transport ends a half only once
    copies = 2 if rig.capabilities.ends_by_handle else 1
    expect_soon(
        lambda: ids(rig, topic).count(half.half_id) == copies, f"{copies} copies are visible", within=rig.deadline
    )
    assert settled_ids(rig, broker, topic) == [half.half_id] * copies
    assert copies == 2 or ended.confirmation is Confirmation.UNANSWERED


def test_commit_after_rollback_is_delivered(rig: Rig, topic: str, group: str) -> None:
    # Given a half that was rolled back
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    end_one(broker, half, Verdict.ROLLBACK)
    # When it is committed; Then it is delivered all the same, unless the transport ends a half only once
    end_one(broker, half, Verdict.COMMIT)
    assert settled_ids(rig, broker, topic) == [half.half_id] * rig.capabilities.ends_by_handle


def test_another_connection_of_the_group_ends_a_half(rig: Rig, topic: str, group: str) -> None:
    # Given a half whose sender is gone
    sender = rig.open(group)
    half = prepare_one(sender, message(topic))
    sender.close()
    # When another connection of the same group commits it by its handle
    heir = rig.open(group)
    ended = end_one(heir, half, Verdict.COMMIT)
    # Then the message becomes visible, or the capabilities said no
    if rig.capabilities.ends_by_handle:
        assert ended.confirmation in {Confirmation.CONFIRMED, Confirmation.UNANSWERED}
        expect_soon(lambda: ids(rig, topic) == [half.half_id], "the message is visible", within=rig.deadline)
    else:
        assert ended.confirmation is not Confirmation.CONFIRMED
        assert settled_ids(rig, heir, topic) == []


def test_the_half_names_the_group_that_ends_it(rig: Rig, topic: str, group: str) -> None:
    # Given a half of another group, as after a change of settings
    if not rig.capabilities.ends_by_handle:
        pytest.skip("this transport ends only its own halves: denied by its capabilities")
    half = prepare_one(rig.open(group), message(topic))
    # When a connection under a new group ends it
    heir = rig.open(rig.fresh_group())
    end_one(heir, half, Verdict.COMMIT)
    # Then the half's own group is what counts
    assert settled_ids(rig, heir, topic) == [half.half_id]


def test_an_unknown_handle_is_gone(rig: Rig, topic: str, group: str) -> None:
    # Given a half and a handle at which there is nothing
    if not (rig.capabilities.confirms and rig.capabilities.ends_by_handle):
        pytest.skip("this transport does not hear the broker's answer: denied by its capabilities")
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    # When it is ended; Then it is gone, and the real one is untouched
    ended = end_one(broker, rig.nowhere(half), Verdict.COMMIT)
    assert ended.confirmation is Confirmation.GONE
    assert ended.reason
    assert settled_ids(rig, broker, topic) == []


def test_the_wrong_group_is_denied(rig: Rig, topic: str, group: str) -> None:
    # Given a half
    if not (rig.capabilities.confirms and rig.capabilities.ends_by_handle):
        pytest.skip("this transport does not hear the broker's answer: denied by its capabilities")
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    # When it is ended in another group's name
    ended = end_one(broker, replace(half, group=rig.fresh_group()), Verdict.COMMIT)
    # Then the broker says no, and nothing is visible
    assert ended.confirmation is Confirmation.DENIED
    assert ended.reason
    assert settled_ids(rig, broker, topic) == []


def test_one_denied_ending_harms_no_other(rig: Rig, topic: str, group: str) -> None:
    # Given three halves, the second under a wrong name
    if not (rig.capabilities.confirms and rig.capabilities.ends_by_handle):
        pytest.skip("this transport does not hear the broker's answer: denied by its capabilities")
    broker = rig.open(group)
    halves = prepare_all(broker, [message(topic) for _ in range(3)])
    endings = [Ending(half, Verdict.COMMIT) for half in halves]
    endings[1] = Ending(replace(halves[1], group=rig.fresh_group()), Verdict.COMMIT)
    # When they are ended together; Then the answers are in order
    answers = [ended.confirmation for ended in broker.resolve(endings, until=monotonic() + PATIENCE)]
    assert answers == [Confirmation.CONFIRMED, Confirmation.DENIED, Confirmation.CONFIRMED]
    assert sorted(settled_ids(rig, broker, topic)) == sorted([halves[0].half_id, halves[2].half_id])


def test_after_the_time_limit_nothing_is_written(rig: Rig, topic: str, group: str) -> None:
    # Given a half and a window that is over
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    # When it is ended
    (ended,) = broker.resolve([Ending(half, Verdict.COMMIT)], until=monotonic() - 1)
    # Then it is unanswered and nothing happened
    assert ended.confirmation is Confirmation.UNANSWERED
    assert settled_ids(rig, broker, topic) == []
