"""The embedded broker's rounds of checks, under a clock that the test sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.brokers.base import Answer, Check
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting
from tests.contracts.rig import look_up
from tests.unit.brokers.embedded_bench import GROUP, TOPIC, Bench, bench_in, end, prepare
from tests.waiting import expect_soon

INTERVAL = 30.0
DEADLINE = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench with RocketMQ's own times."""
    yield from bench_in(tmp_path)


def test_no_check_before_the_half_is_old_enough(bench: Bench) -> None:
    # Given a half that is five seconds old when a round is due
    broker, inspector = bench.broker(), bench.inspector()
    prepare(broker)
    bench.clock.advance(INTERVAL - 5)
    prepare(broker)
    bench.clock.advance(5)
    # When the round comes; Then only the older one is asked about
    assert sorted(half.checks for half in inspector.open_halves()) == [0, 1]


def test_one_round_in_each_interval(bench: Bench) -> None:
    # Given a half; When the file is looked at often; Then it is asked about once an interval
    prepare(bench.broker())
    inspector = bench.inspector()
    counted = []
    for _ in range(9):
        bench.clock.advance(INTERVAL / 3)
        counted.append(inspector.open_halves()[0].checks)
    assert counted == [0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_rounds_that_nobody_saw_are_not_made_up(bench: Bench) -> None:
    # Given a file that nobody touched for a day; When somebody does; Then one check is counted
    prepare(bench.broker())
    bench.clock.advance(24 * 3600)
    assert [half.checks for half in bench.inspector().open_halves()] == [1]


def test_a_clock_that_was_set_back_stops_no_checks(bench: Bench) -> None:
    # Given a clock that is set back by a day
    half = prepare(bench.broker())
    bench.clock.advance(-24 * 3600)
    # When a round's time has passed since then
    inspector = bench.inspector()
    inspector.open_halves()
    prepare(bench.broker())
    bench.clock.advance(INTERVAL)
    # Then the halves that are old enough by the new clock are asked about
    checks = {seen.half_id: seen.checks for seen in inspector.open_halves()}
    assert checks.pop(half.half_id) == 0
    assert list(checks.values()) == [1]


def test_fifteen_checks_without_a_listener_then_discarded(bench: Bench) -> None:
    # Given a half whose producers are all away
    broker, inspector = bench.broker(), bench.inspector()
    inspector.topics()
    bench.clock.advance(1)
    half, since = prepare(broker), bench.clock.moment()
    # When fifteen rounds have come and gone
    for times in range(1, 16):
        bench.clock.advance(INTERVAL)
        assert [seen.checks for seen in inspector.open_halves()] == [times]
    assert inspector.discarded() == []
    # Then the next one discards it
    bench.clock.advance(INTERVAL)
    (discarded,) = inspector.discarded()
    assert discarded.unique_id == half.half_id
    assert (discarded.properties["REAL_TOPIC"], discarded.properties["PGROUP"]) == (TOPIC, GROUP)
    assert inspector.open_halves() == []
    # And the look-up knows that it was never visible
    assert look_up(broker, half, since) is Sighting.ABSENT


def test_fifteen_checks_with_a_listener_then_discarded(bench: Bench) -> None:
    # Given a listener that cannot tell
    broker, inspector = bench.broker(), bench.inspector()
    half = prepare(broker)
    asked: list[int] = []

    def cannot_tell(check: Check, answer: Answer) -> None:
        assert check.properties["TRANSACTION_CHECK_TIMES"] == str(check.times)
        asked.append(check.times)
        answer(Verdict.UNKNOWN, 0)

    broker.listen([TOPIC], cannot_tell)
    expect_soon(broker.checks_ready, "registered", within=DEADLINE)
    # When fifteen rounds have come and gone
    for times in range(1, 16):
        bench.clock.advance(INTERVAL)
        expect_soon(lambda times=times: len(asked) == times, f"check {times}", within=DEADLINE)  # type: ignore[misc]
    bench.clock.advance(INTERVAL)
    # Then it was asked fifteen times, and no more
    expect_soon(
        lambda: [seen.unique_id for seen in inspector.discarded()] == [half.half_id], "discarded", within=DEADLINE
    )
    assert asked == list(range(1, 16))


def test_the_stored_handle_commits_after_the_discard(bench: Bench) -> None:
    # Given a half that was discarded
    broker, inspector = bench.broker(), bench.inspector()
    half = prepare(broker)
    for _ in range(16):
        bench.clock.advance(INTERVAL)
        inspector.open_halves()
    assert len(inspector.discarded()) == 1
    # When it is committed by the handle it was stored with
    ended = end(broker, half)
    # Then there is one message
    assert ended.confirmation is Confirmation.CONFIRMED
    assert [seen.unique_id for seen in inspector.visible(TOPIC)] == [half.half_id]


def test_a_commit_at_the_old_place_leaves_the_copy_to_be_asked_about(bench: Bench) -> None:
    # Given a half that a check has re-appended
    broker, inspector = bench.broker(), bench.inspector()
    half = prepare(broker)
    bench.clock.advance(INTERVAL)
    inspector.open_halves()
    # When it is committed at its old place
    end(broker, half)
    # Then the copy stays open, as on a real broker
    bench.clock.advance(INTERVAL)
    assert [(seen.half_id, seen.checks) for seen in inspector.open_halves()] == [(half.half_id, 2)]
    assert len(inspector.visible(TOPIC)) == 1


def test_old_messages_leave_the_file(bench: Bench) -> None:
    # Given a committed and an open half, older than the retention
    broker, inspector = bench.broker(), bench.inspector()
    prepare(broker)
    bench.clock.advance(1)
    committed, left_open = prepare(broker), prepare(broker)
    decided = bench.clock.moment()
    end(broker, committed)
    bench.clock.advance(bench.timing.retention + INTERVAL)
    # When a round has passed; Then they are gone, and an ending says so
    assert inspector.visible(TOPIC) == []
    assert inspector.open_halves() == []
    assert end(broker, left_open).confirmation is Confirmation.GONE
    # And nobody claims to know what became of them
    assert look_up(broker, committed, decided) is Sighting.EXPIRED
    # And the file goes on
    after = prepare(broker)
    end(broker, after)
    assert [seen.unique_id for seen in inspector.visible(TOPIC)] == [after.half_id]


def test_unknown_ends_nothing(bench: Bench) -> None:
    # Given a half; When it is to be ended with UNKNOWN; Then that is a mistake of the caller
    broker = bench.broker()
    half = prepare(broker)
    with pytest.raises(ValueError, match="UNKNOWN"):
        end(broker, half, Verdict.UNKNOWN)
