"""Contract of every ``Broker``: the broker asks what became of a half."""

from itertools import chain, repeat

import pytest

from outbox.brokers.base import Answer, Check, Ended
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import (
    Asked,
    Rig,
    await_check,
    end_one,
    ids,
    listen,
    message,
    prepare_one,
    publish,
    settled_ids,
    soon,
)
from tests.waiting import expect_soon


def once(half_id: str, verdict: Verdict) -> Asked:
    """Answers the first check about a half with the verdict, later ones as a leftover copy, others UNKNOWN."""
    verdicts = chain([verdict], repeat(Verdict.ROLLBACK))

    def policy(check: Check, answer: Answer) -> Ended:
        return answer(next(verdicts) if check.half.half_id == half_id else Verdict.UNKNOWN, soon())

    return Asked(policy)


def test_nobody_is_ready_who_does_not_listen(rig: Rig, group: str) -> None:
    # Given a connection that never listened; When asked; Then it is not ready
    assert not rig.open(group).checks_ready()


def test_a_check_carries_the_message(rig: Rig, topic: str, group: str) -> None:
    # Given a half whose sender is gone
    sender = rig.open(group)
    outgoing = message(topic, tag="paid", properties={"outbox-origin": "shop/1", "outbox-token": "t0", "note": "é"})
    half = prepare_one(sender, outgoing)
    sender.close()
    # When a process listens that only listens
    asked = Asked()
    listen(rig, rig.open(group), topic, asked)
    check = await_check(rig, asked, half)
    # Then it is asked about the half, with all its properties
    assert (check.half.topic, check.half.half_id, check.half.group) == (topic, half.half_id, half.group)
    assert outgoing.properties.items() <= check.properties.items()
    assert check.times >= 0


def test_who_names_no_topics_is_asked_about_any(rig: Rig, topic: str, group: str) -> None:
    # Given a half whose sender is gone
    sender = rig.open(group)
    half = prepare_one(sender, message(topic))
    sender.close()
    # When a process listens that knows of no topic
    asked = Asked()
    broker = rig.open(group)
    broker.listen((), asked)
    expect_soon(broker.checks_ready, "the listener is registered", within=rig.check_deadline)
    # Then it is asked, where checks go by the group
    if rig.capabilities.check_scope == "group":
        assert await_check(rig, asked, half).half.topic == topic
    else:
        assert rig.capabilities.check_scope == "topic"


def test_the_half_of_a_check_ends_like_any_other(rig: Rig, topic: str, group: str) -> None:
    # Given a check
    if not rig.capabilities.ends_by_handle:
        pytest.skip("this transport ends a half only in its check: denied by its capabilities")
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    asked = Asked()
    listen(rig, rig.open(group), topic, asked)
    check = await_check(rig, asked, half)
    # When another connection commits the half that the check names
    end_one(broker, check.half, Verdict.COMMIT)
    # Then the message becomes visible
    assert settled_ids(rig, broker, topic) == [half.half_id]


@pytest.mark.parametrize(("verdict", "copies"), [(Verdict.COMMIT, 1), (Verdict.ROLLBACK, 0)])
def test_a_final_answer_ends_the_half(rig: Rig, topic: str, group: str, verdict: Verdict, copies: int) -> None:
    # Given two halves: one to be ended in its check, one that stays open to show that checks go on
    broker = rig.open(group)
    half, witness = (prepare_one(broker, message(topic)) for _ in range(2))
    asked = once(half.half_id, verdict)
    # When the check is answered
    listen(rig, broker, topic, asked)
    expect_soon(lambda: half.half_id in dict(asked.answers), "the check is answered", within=rig.check_deadline)
    # Then the answer is confirmed (where the transport can), and later rounds change nothing
    expected = Confirmation.CONFIRMED if rig.capabilities.confirms else Confirmation.UNANSWERED
    assert next(ended for half_id, ended in asked.answers if half_id == half.half_id).confirmation is expected
    await_check(rig, asked, witness, asked.times(witness) + 2)
    assert settled_ids(rig, broker, topic) == [half.half_id] * copies


def test_unknown_is_asked_again(rig: Rig, topic: str, group: str) -> None:
    # Given a listener that cannot tell
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    asked = Asked()
    listen(rig, broker, topic, asked)
    # When it has been asked twice
    await_check(rig, asked, half, 2)
    expect_soon(lambda: asked.answers, "it has answered", within=rig.deadline)
    # Then UNKNOWN counted as said, and nothing is visible
    assert {ended.confirmation for _, ended in asked.answers} == {Confirmation.CONFIRMED}
    assert settled_ids(rig, broker, topic) == []


def test_silence_is_asked_again(rig: Rig, topic: str, group: str) -> None:
    # Given a handler that never answers; When it returns; Then it is asked again
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    asked = Asked(lambda check, answer: Ended(Confirmation.UNANSWERED))
    listen(rig, broker, topic, asked)
    await_check(rig, asked, half, 2)
    assert settled_ids(rig, broker, topic) == []


def test_a_raising_handler_means_unknown(rig: Rig, topic: str, group: str, caplog: pytest.LogCaptureFixture) -> None:
    # Given a handler that fails

    def fail(check: Check, answer: Answer) -> Ended:
        raise RuntimeError("the row cannot be read")

    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    asked = Asked(fail)
    # When it is asked; Then it is asked again, the failure is logged, and nothing is visible
    listen(rig, broker, topic, asked)
    await_check(rig, asked, half, 2)
    expect_soon(lambda: "the row cannot be read" in caplog.text, "it is logged", within=rig.deadline)
    assert settled_ids(rig, broker, topic) == []


def test_an_answer_after_its_time_limit_is_not_written(rig: Rig, topic: str, group: str) -> None:
    # Given a handler that takes longer than its window
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    asked = Asked(lambda check, answer: answer(Verdict.COMMIT, monotonic() - 1))
    # When it answers; Then nothing is written, it is told so, and it is asked again
    listen(rig, broker, topic, asked)
    await_check(rig, asked, half, 2)
    expect_soon(lambda: asked.answers, "it has answered", within=rig.deadline)
    assert {ended.confirmation for _, ended in asked.answers} == {Confirmation.UNANSWERED}
    assert settled_ids(rig, broker, topic) == []


def test_checks_reach_their_own_group(rig: Rig, topic: str, group: str) -> None:
    # Given halves of two groups on one topic, and a listener for each
    if rig.capabilities.check_scope != "group":
        pytest.skip("checks of this transport reach any producer of the topic: its capabilities say so")
    other = rig.fresh_group()
    brokers = {name: rig.open(name) for name in (group, other)}
    halves = {name: prepare_one(broker, message(topic)) for name, broker in brokers.items()}
    asked = {name: Asked() for name in brokers}
    for name, broker in brokers.items():
        listen(rig, broker, topic, asked[name])
    # When each has been asked twice
    for name, half in halves.items():
        await_check(rig, asked[name], half, 2)
    # Then each was asked about its own half only
    for name, half in halves.items():
        assert {check.half.half_id for check in asked[name].checks} == {half.half_id}


def test_a_listener_may_stand_in_for_more_groups(rig: Rig, topic: str, group: str) -> None:
    # Given a half of a group that nobody uses any more
    half = prepare_one(rig.open(rig.fresh_group()), message(topic))
    # When a listener of another group names that one too
    asked = once(half.half_id, Verdict.COMMIT)
    listen(rig, rig.open(group), topic, asked, half.group)
    # Then it is asked, and its answer counts
    assert await_check(rig, asked, half).half.group == half.group
    expect_soon(lambda: half.half_id in ids(rig, topic), "the message is visible", within=rig.deadline)


def test_one_check_goes_to_one_listener(rig: Rig, topic: str, group: str) -> None:
    # Given two listeners of one group
    halves = [prepare_one(rig.open(group), message(topic)) for _ in range(4)]
    listeners = [Asked(), Asked()]
    for asked in listeners:
        listen(rig, rig.open(group), topic, asked)
    # When several rounds have passed
    for half in halves:
        times = lambda half=half: sum(asked.times(half) for asked in listeners)  # noqa: E731
        expect_soon(lambda times=times: times() >= 3, "three rounds", within=rig.check_deadline * 3)  # type: ignore[misc]
    # Then no copy of a half was asked about twice; where handles do not tell copies apart, their numbers do
    asked_about = [check for asked in listeners for check in asked.checks if check.half.handle]
    by_handle = rig.capabilities.ends_by_handle
    copies = [(check.half.handle, 0 if by_handle else check.times) for check in asked_about]
    assert len(copies) == len(set(copies))


def test_the_stored_handle_commits_after_checks(rig: Rig, topic: str, group: str) -> None:
    # Given a half that a check has re-appended elsewhere
    if not rig.capabilities.ends_by_handle:
        pytest.skip("this transport ends only its own halves: denied by its capabilities")
    broker = rig.open(group)
    half = prepare_one(broker, message(topic))
    asked = Asked()
    listen(rig, rig.open(group), topic, asked)
    await_check(rig, asked, half, 2)
    # When it is committed by the handle it was stored with; Then the message becomes visible
    end_one(broker, half, Verdict.COMMIT)
    assert settled_ids(rig, broker, topic) == [half.half_id]


def test_the_leftover_copy_of_a_committed_half_is_rolled_back(rig: Rig, topic: str, group: str) -> None:
    # Given a half that was re-appended by a check and committed by its old handle: a copy is left over
    if not rig.capabilities.ends_by_handle:
        pytest.skip("this transport ends only its own halves: denied by its capabilities")
    broker = rig.open(group)
    half, witness = (prepare_one(broker, message(topic)) for _ in range(2))
    decided: list[Verdict] = []
    asked = Asked(
        lambda check, answer: answer(
            decided[0] if check.half.half_id == half.half_id and decided else Verdict.UNKNOWN, soon()
        )
    )
    listen(rig, rig.open(group), topic, asked)
    await_check(rig, asked, half)
    decided.append(Verdict.ROLLBACK)
    end_one(broker, half, Verdict.COMMIT)
    # When later checks about the copy are answered ROLLBACK
    await_check(rig, asked, witness, asked.times(witness) + 3)
    # Then one message is visible
    assert settled_ids(rig, broker, topic) == [half.half_id]


def test_an_ended_half_is_asked_about_no_more(rig: Rig, topic: str, group: str) -> None:
    # Given a listener
    broker = rig.open(group)
    asked = Asked()
    listen(rig, broker, topic, asked)

    def asks_about_the_open_one() -> bool:
        """When a half is committed, one is rolled back, one stays open, and rounds of checks go on."""
        committed = publish(broker, message(topic))
        rolled_back = prepare_one(broker, message(topic))
        end_one(broker, rolled_back, Verdict.ROLLBACK)
        await_check(rig, asked, prepare_one(broker, message(topic)), 3)
        return asked.times(committed) == asked.times(rolled_back) == 0

    # Then they are about the open one, at a broker that is not held up: one that stands still for more than its check
    # interval before it has written down what ended (it does so in batches) asks again, whatever it has confirmed
    expect_soon(asks_about_the_open_one, "nobody asks about what has ended", within=4 * rig.check_deadline)


def test_a_second_listen_replaces_the_first(rig: Rig, topic: str, group: str) -> None:
    # Given a listener that is replaced
    broker = rig.open(group)
    first, second = Asked(), Asked()
    listen(rig, broker, topic, first)
    listen(rig, broker, topic, second)
    # When a half is asked about; Then only the second handler hears it
    half = prepare_one(broker, message(topic))
    await_check(rig, second, half, 2)
    assert first.times(half) == 0


def test_a_closed_listener_is_asked_no_more(rig: Rig, topic: str, group: str) -> None:
    # Given a listener that closes in good order, and another one
    closed, alive = Asked(), Asked()
    leaving = rig.open(group)
    listen(rig, leaving, topic, closed)
    leaving.close()
    broker = rig.open(group)
    listen(rig, broker, topic, alive)
    # When a half is asked about; Then only the live one hears it
    half = prepare_one(broker, message(topic))
    await_check(rig, alive, half, 2)
    assert closed.times(half) == 0
