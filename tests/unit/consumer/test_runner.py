"""The runner against a broker in memory: what the broker is told, and when."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from outbox.brokers.base import BrokerClosed
from outbox.brokers.source import Delivery
from outbox.consumer import (
    Duplicate,
    Filtered,
    InProgress,
    NoKey,
    Outcome,
    Park,
    Processed,
    Retry,
    Runner,
    RunnerSettings,
    run,
)
from outbox.consumer.schedule import RETRY_DELAYS, delay_after, is_exhausted
from outbox.errors import SettingsError
from tests.unit.consumer.fakes import DEADLINE, FakeSource, FakeStrategy, delivery
from tests.unit.consumer.running import Clock
from tests.unit.consumer.running import running as in_a_thread
from tests.waiting import expect_soon

QUICK = RunnerSettings(receive_wait=0.02, outage_rest=0.01, outage_rest_most=0.02)


def running(
    source: FakeSource, strategy: FakeStrategy, settings: RunnerSettings = QUICK
) -> AbstractContextManager[threading.Event]:
    """A quick runner."""
    return in_a_thread(source, strategy, settings)


def answers(*outcomes: Outcome) -> Callable[[Delivery], Outcome]:
    """A policy that answers by attempt; the last one repeats."""
    return lambda delivery: outcomes[min(delivery.attempt, len(outcomes)) - 1]


@pytest.mark.parametrize("outcome", [Processed(), Duplicate(), Filtered()])
def test_a_durable_outcome_is_acknowledged(outcome: Outcome) -> None:
    # Given a message
    source, message = FakeSource(), delivery()
    source.put(message)
    # When its outcome is durable
    with running(source, FakeStrategy(answers(outcome))):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    # Then it is acknowledged once, and nothing else is said
    assert source.acknowledged == [message.unique_id]
    assert source.returned == []


def test_a_retry_comes_again_later_each_time() -> None:
    # Given a message that fails twice
    source, message = FakeSource(), delivery()
    source.put(message)
    with running(source, FakeStrategy(answers(Retry("no"), Retry("no"), Processed()))):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    # Then the delays grow as the broker's do, and only the success is acknowledged
    assert source.returned == [(message.unique_id, 10.0), (message.unique_id, 30.0)]
    assert source.acknowledged == [message.unique_id]


def test_the_seventeenth_failure_is_a_dead_letter() -> None:
    # Given a message that never succeeds
    source, message = FakeSource(), delivery()
    source.put(message)
    # When all retries are used
    with running(source, FakeStrategy(answers(Retry("always")))):
        source.expect(lambda: bool(source.buried), "buried")
    # Then it was given back sixteen times, then buried with its reason
    assert [delay for _, delay in source.returned] == list(RETRY_DELAYS)
    assert source.buried == [(message.unique_id, "after 17 attempts: always")]
    assert source.acknowledged == []


def test_a_key_in_progress_waits_for_the_rest_of_its_lease_and_is_never_buried() -> None:
    # Given a key whose owner lives, at first delivery and after all retries
    source = FakeSource(redelivers=False)
    first, late = delivery(), delivery(attempt=30)
    source.put(first, late)
    with running(source, FakeStrategy(answers(InProgress(77.0)))):
        source.expect(lambda: len(source.returned) == 2, "returned")
    # Then each waits at least as long as the lease
    assert dict(source.returned) == {first.unique_id: 77.0, late.unique_id: 7200.0}
    assert source.buried == []


@pytest.mark.parametrize("outcome", [Park("never"), NoKey("never")])
@pytest.mark.parametrize("parks", [True, False])
def test_what_can_never_succeed_is_stored_before_it_is_acknowledged(outcome: Outcome, parks: bool) -> None:
    # Given a message without hope, and a strategy with or without a parking table
    source, message = FakeSource(), delivery()
    strategy = FakeStrategy(answers(outcome), parks=parks)
    source.put(message)
    with running(source, strategy):
        source.expect(lambda: bool(source.acknowledged or source.buried), "told")
    # Then it is in the table and acknowledged, or it is a dead letter
    assert strategy.parked == ([(message.unique_id, "never")] if parks else [])
    assert source.acknowledged == ([message.unique_id] if parks else [])
    assert source.buried == ([] if parks else [(message.unique_id, "never")])


def test_a_message_that_cannot_be_parked_yet_is_kept() -> None:
    # Given a parking table that is away at first
    source, message = FakeSource(), delivery()
    failures = iter([OSError("away"), OSError("away")])

    class Away(FakeStrategy):
        def park(self, delivery: Delivery, reason: str) -> bool:
            if error := next(failures, None):
                raise error
            return super().park(delivery, reason)

    strategy = Away(answers(Park("never")))
    source.put(message)
    with running(source, strategy):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    # Then it is acknowledged only once it is stored, and no retry was used
    assert strategy.parked == [(message.unique_id, "never")]
    assert source.returned == []


def test_an_outage_uses_up_no_retry() -> None:
    # Given a store that is away for a while
    source, message = FakeSource(), delivery()
    calls = iter([Retry("away", outage=True)] * 5)
    source.put(message)
    # When it is back
    with running(source, FakeStrategy(lambda _: next(calls, Processed()))):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    # Then the message was never given back
    assert source.returned == []
    assert next(calls, None) is None


def test_a_message_that_ends_the_connection_each_time_is_charged_and_holds_up_nobody() -> None:
    # Given a message under whose handler a store that was there goes away, again and again
    source, bad, good = FakeSource(redelivers=False), delivery(), delivery()
    lost = Retry("lost", outage=True, begun=True)
    source.put(bad)
    with running(source, FakeStrategy(lambda it: lost if it.unique_id == bad.unique_id else Processed())):
        # When it has done so often enough / Then it is given back for later, and others are received
        source.expect(lambda: bool(source.returned), "returned")
        source.put(good)
        source.expect(lambda: source.acknowledged == [good.unique_id], "acknowledged")
    assert source.returned == [(bad.unique_id, 10.0)]


def test_an_outage_in_between_is_not_the_message_s_fault() -> None:
    source, message = FakeSource(), delivery()
    lost, away = Retry("lost", outage=True, begun=True), Retry("away", outage=True)
    calls = iter([lost, lost, away, lost, lost])
    source.put(message)
    with running(source, FakeStrategy(lambda _: next(calls, Processed()))):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    assert source.returned == []


def test_nothing_more_is_received_during_an_outage() -> None:
    # Given a store that is away, and one worker that holds a message
    source, strategy = FakeSource(), FakeStrategy(answers(Retry("away", outage=True)))
    source.put(delivery())
    settings = RunnerSettings(threads=1, receive_wait=0.02, outage_rest=0.01, outage_rest_most=0.02)
    with running(source, strategy, settings) as stop:
        expect_soon(lambda: len(strategy.processed) >= 3)
        asked = len(source.limits)
        # When more messages wait at the broker
        source.put(delivery(), delivery())
        expect_soon(lambda: len(strategy.processed) >= 10)
        # Then they stay there, for members that can work (one reception may have been on its way)
        assert len(source.limits) <= asked + 1
        stop.set()
    # And on stop the held one goes back at once
    assert {delay for _, delay in source.returned} == {0.0}


def test_a_failing_strategy_is_a_retry_and_the_workers_live_on() -> None:
    # Given a strategy with a fault of its own, and a handler that exits
    def policy(delivery: Delivery) -> Outcome:
        if delivery.attempt == 1:
            raise SystemExit(1)
        if delivery.attempt == 2:
            raise ZeroDivisionError("fault")
        return Processed()

    source = FakeSource()
    messages = [delivery() for _ in range(10)]
    source.put(*messages)
    with running(source, FakeStrategy(policy)):
        source.expect(lambda: len(source.acknowledged) == 10, "acknowledged")
    # Then all messages are processed in the end
    assert sorted(source.acknowledged) == sorted(each.unique_id for each in messages)


def test_running_and_waiting_messages_stay_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given one worker, held up by the first of two messages
    clock, done = Clock(monkeypatch), threading.Event()

    def policy(_: Delivery) -> Outcome:
        done.wait(DEADLINE)
        return Processed()

    source = FakeSource()
    invisible = 0.3
    messages = [delivery(invisible_until=clock.now + invisible) for _ in range(2)]
    wanted = sorted(each.unique_id for each in messages)
    source.put(*messages)
    settings = RunnerSettings(threads=1, invisible=invisible, receive_wait=0.02)
    with running(source, FakeStrategy(policy), settings):
        # When that takes several times the invisible time
        for times in range(1, 10):
            clock.now += invisible / 2
            source.expect(lambda times=times: sorted(source.renewals) == sorted(wanted * times), "both renewed")  # type: ignore[misc]
        done.set()
        # Then both are acknowledged under their latest receipts
        source.expect(lambda: sorted(source.acknowledged) == wanted, "acknowledged")


@pytest.mark.parametrize("passes", [0.2, 0.4], ids=["refused", "lapsed"])
def test_a_lost_message_is_not_worked_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, passes: float
) -> None:
    # Given a broker that extends nothing, and a worker held up by the first of two messages
    source, strategy = FakeSource(refuses_renewal=True, redelivers=False), FakeStrategy()
    clock, worked = Clock(monkeypatch), threading.Event()

    def policy(_: Delivery) -> Outcome:
        # When the other one's time is up, or is not extended, and this one's is up
        clock.now += passes
        if passes < invisible:
            expect_soon(lambda: f"{waiting.unique_id}: its invisible time could not be extended" in caplog.text)
        clock.now += 2
        worked.set()
        return Processed()

    strategy.policy, invisible = policy, 0.3
    first, waiting = (delivery(invisible_until=clock.now + lasts) for lasts in (2, invisible))
    source.put(first, waiting)
    with running(source, strategy, RunnerSettings(threads=1, invisible=invisible, receive_wait=0.02)):
        assert worked.wait(DEADLINE)
        expect_soon(lambda: f"{waiting.unique_id}: it was not ours any more" in caplog.text)
    # Then the waiting one is left to whoever receives it next, and nothing is said under expired receipts
    assert strategy.processed == [first.unique_id]
    assert source.acknowledged == []
    assert source.returned == []


@pytest.mark.parametrize("queue_bytes", [1, 16 * 1024 * 1024])
def test_the_queue_is_bounded_by_count_and_by_bytes(queue_bytes: int) -> None:
    # Given a worker that is held up, and many messages
    done = threading.Event()

    def policy(_: Delivery) -> Outcome:
        done.wait(DEADLINE)
        return Processed()

    source = FakeSource()
    source.put(*[delivery() for _ in range(40)])
    settings = RunnerSettings(threads=1, queue_messages=5, queue_bytes=queue_bytes, receive_wait=0.01)
    with running(source, FakeStrategy(policy), settings):
        # When the queue is full (by bytes: after the first batch)
        expect_soon(lambda: len(source.queued) <= (35 if queue_bytes == 1 else 34))
        # Then the rest stays with the broker: at most five wait, and one is worked on
        assert len(source.queued) >= 34
        done.set()
        source.expect(lambda: len(source.acknowledged) == 40, "all")
    assert max(source.limits) <= 5


def test_an_orderly_stop_finishes_what_runs_and_gives_back_the_rest() -> None:
    # Given one message that runs and two that wait
    started, done = threading.Event(), threading.Event()

    def policy(_: Delivery) -> Outcome:
        started.set()
        done.wait(DEADLINE)
        return Processed()

    source = FakeSource(redelivers=False)
    runs, *wait = messages = [delivery() for _ in range(3)]
    source.put(*messages)
    with running(source, FakeStrategy(policy), RunnerSettings(threads=1, receive_wait=0.01)) as stop:
        assert started.wait(DEADLINE)
        expect_soon(lambda: not source.queued)
        # When it is told to stop
        stop.set()
        source.expect(lambda: len(source.returned) == 2, "given back")
        done.set()
    # Then the first finishes and is acknowledged, the others go back at once
    assert source.acknowledged == [runs.unique_id]
    assert sorted(source.returned) == sorted((each.unique_id, 0.0) for each in wait)


def test_a_closed_source_ends_the_runner() -> None:
    class Closed(FakeSource):
        def receive(self, limit: int, wait: float) -> list[Delivery]:
            raise BrokerClosed("closed")

    with pytest.raises(BrokerClosed):
        Runner(Closed(), FakeStrategy(), QUICK).run(threading.Event())


def test_an_answer_that_fails_hurts_nobody_else() -> None:
    # Given a broker connection that fails at the first acknowledgement
    class Failing(FakeSource):
        def acknowledge(self, delivery: Delivery) -> bool:
            if delivery.unique_id == first.unique_id:
                raise OSError("network")
            return super().acknowledge(delivery)

    source, strategy = Failing(), FakeStrategy()
    first, second = delivery(), delivery()
    source.put(first, second)
    # When both are processed
    with running(source, strategy, RunnerSettings(threads=1, receive_wait=0.02)):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    # Then the worker went on, and the first is left to come again
    assert source.acknowledged == [second.unique_id]
    assert strategy.processed == [first.unique_id, second.unique_id]


def test_a_failing_reception_is_tried_again() -> None:
    class Failing(FakeSource):
        def receive(self, limit: int, wait: float) -> list[Delivery]:
            if not failed.is_set():
                failed.set()
                raise OSError("network")
            return super().receive(limit, wait)

    failed = threading.Event()
    source = Failing()
    source.put(delivery())
    with running(source, FakeStrategy()):
        source.expect(lambda: bool(source.acknowledged), "acknowledged")
    assert failed.is_set()


def test_the_schedule_is_the_brokers() -> None:
    assert [delay_after(attempt) for attempt in (0, 1, 2, 16, 17, 99)] == [10, 10, 30, 7200, 7200, 7200]
    assert not is_exhausted(16)
    assert is_exhausted(17)
    assert sum(RETRY_DELAYS) == 4 * 3600 + 45 * 60 + 40


def test_run_opens_purges_and_closes() -> None:
    # Given a consumer and a broker
    source, strategy, opened, stop = FakeSource(), FakeStrategy(), [], threading.Event()
    source.put(delivery())

    def open_source(topics: object, group: str) -> FakeSource:
        opened.append((topics, group))
        return source

    # When it is run until it has purged and acknowledged
    thread = threading.Thread(
        target=run, args=(strategy, open_source, stop), kwargs={"settings": QUICK, "purge_every": 0.01}
    )
    thread.start()
    source.expect(lambda: bool(source.acknowledged), "acknowledged")
    expect_soon(lambda: strategy.purges > 1)
    stop.set()
    thread.join(DEADLINE)
    # Then it used its own topics and group, and left nothing open
    assert opened == [(("payments",), "outbox-tests")]
    assert source.closed
    assert strategy.closed


def test_run_refuses_what_is_no_consumer() -> None:
    with pytest.raises(SettingsError, match=r"name an outbox\.consumer\.Inbox"):
        run(object(), lambda *_: FakeSource(), threading.Event())  # type: ignore[arg-type]


def test_a_failing_purge_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    # Given a store that fails at the first purge
    class Failing(FakeStrategy):
        def purge(self) -> int:
            if super().purge() == 0 and self.purges == 1:
                raise OSError("away")
            return 3 if self.purges == 2 else 0

    source, strategy, stop = FakeSource(), Failing(), threading.Event()
    thread = threading.Thread(
        target=run, args=(strategy, lambda *_: source, stop), kwargs={"settings": QUICK, "purge_every": 0.01}
    )
    thread.start()
    # When time passes / Then it is purged again, batch after batch
    with caplog.at_level(logging.INFO, "outbox.consumer.serve"):
        expect_soon(lambda: strategy.purges >= 4)
        stop.set()
        thread.join(DEADLINE)
    assert not thread.is_alive()
    # And rounds that found nothing say nothing
    told = [record.getMessage() for record in caplog.records if "retention:" in record.getMessage()]
    assert told == ["retention: 3 effects forgotten"]
