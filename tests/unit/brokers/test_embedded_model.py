"""The embedded broker against a model of a few lines, over random histories."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from outbox.brokers.base import Check, Half
from outbox.brokers.embedded import BrokerTiming
from outbox.brokers.embedded import checks as rounds
from outbox.brokers.embedded.storefile import StoreFile
from outbox.brokers.source import Delivery
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.unit.brokers.embedded_bench import GROUP, TOPIC, Bench, end, prepare

INTERVAL, INVISIBLE = 30.0, 20.0
TIMING = BrokerTiming(transaction_timeout=6, check_interval=INTERVAL, max_checks=2, max_retries=2, listener_expiry=1e9)


class BrokerMachine(RuleBasedStateMachine):
    """Halves, endings, rounds, one consumer group; the model keeps what each must lead to."""

    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.bench = Bench(Path(self._folder.name) / "broker.db", TIMING)
        self.broker = self.bench.broker()
        self.source = self.bench.source("points", INVISIBLE)
        self.inspector = self.bench.inspector()
        self.file = StoreFile(self.bench.path, TIMING, self.bench.clock)
        self.write(lambda connection: rounds.register(connection, "model", [GROUP], 1e12))
        #: handle -> (half id, checks) of the copies that wait; the half ids that are visible, or were discarded
        self.waiting: dict[str, tuple[str, int]] = {}
        self.visible: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()
        self.born: dict[str, float] = {}
        self.next_round = self.bench.clock.now + INTERVAL
        #: What the group has seen and not settled: receipt -> (delivery, over at); what it gave back before that time.
        self.held: dict[str, tuple[Delivery, float]] = {}
        self.returned: set[str] = set()
        self.settled: Counter[str] = Counter()
        self.buried: Counter[str] = Counter()

    def write(self, step: Callable[..., object]) -> None:
        with self.file.writing(monotonic() + 60) as connection:
            step(connection)

    def teardown(self) -> None:
        self.file.close()
        self.bench.close()
        self._folder.cleanup()

    @rule(target=handles)
    def store_a_half(self) -> Half:
        half = prepare(self.broker)
        self.waiting[half.handle] = (half.half_id, 0)
        self.born[half.half_id] = self.bench.clock.now
        return half

    @rule(half=handles, verdict=st.sampled_from([Verdict.COMMIT, Verdict.ROLLBACK]))
    def end_a_copy(self, half: Half, verdict: Verdict) -> None:
        assert end(self.broker, half, verdict).confirmation is Confirmation.CONFIRMED
        self.waiting.pop(half.handle, None)
        self.visible[half.half_id] += verdict is Verdict.COMMIT

    @rule(target=handles, seconds=st.sampled_from([7.0, INTERVAL, INTERVAL + 7]))
    def let_time_pass(self, seconds: float) -> MultipleResults[Half]:
        self.bench.clock.advance(seconds)
        return multiple(*self.run_a_round()) if self.bench.clock.now >= self.next_round else multiple()

    def run_a_round(self) -> list[Half]:
        self.next_round = self.bench.clock.now + INTERVAL
        old = {
            handle: (half_id, times)
            for handle, (half_id, times) in self.waiting.items()
            if self.born[half_id] <= self.bench.clock.now - TIMING.transaction_timeout
        }
        self.inspector.topics()
        checks: list[Check] = []
        self.write(lambda connection: checks.extend(rounds.take_questions(connection, "model")))
        expected = Counter((half_id, times + 1) for half_id, times in old.values() if times < TIMING.max_checks)
        assert Counter((check.half.half_id, check.times) for check in checks) == expected
        self.discarded.update(half_id for half_id, times in old.values() if times == TIMING.max_checks)
        self.waiting = {handle: each for handle, each in self.waiting.items() if handle not in old}
        self.waiting |= {check.half.handle: (check.half.half_id, check.times) for check in checks}
        return [check.half for check in checks]

    @rule(limit=st.integers(1, 4))
    def receive(self, limit: int) -> None:
        now = self.bench.clock.now
        over = [receipt for receipt, (_, until) in self.held.items() if until <= now]
        lapsed = [self.held.pop(receipt)[0] for receipt in over]
        dead = [delivery for delivery in lapsed if delivery.attempt > TIMING.max_retries]
        due = Counter((each.unique_id, each.attempt + 1) for each in lapsed if each not in dead)
        self.buried.update(delivery.unique_id for delivery in dead)
        batch = self.source.receive(limit, wait=0)
        again = Counter((each.unique_id, each.attempt) for each in batch if each.attempt > 1)
        assert again <= due
        assert len(batch) == limit or again == due
        for delivery in batch:
            self.held[delivery.receipt] = (delivery, now + INVISIBLE)
        if len(batch) < limit:
            assert self.seen_by_the_group() == +self.visible
        waiting = list((due - again).elements())
        for delivery in lapsed:
            key = (delivery.unique_id, delivery.attempt + 1)
            if key in waiting:
                waiting.remove(key)
                self.held[delivery.receipt] = (delivery, now)

    @rule(which=st.integers(0, 50), how=st.sampled_from(["acknowledge", "bury", "later", "renew"]))
    def settle(self, which: int, how: str) -> None:
        if not self.held:
            return
        receipt = list(self.held)[which % len(self.held)]
        delivery, until = self.held[receipt]
        ours = until > self.bench.clock.now and receipt not in self.returned
        match how:
            case "acknowledge":
                assert self.source.acknowledge(delivery) is ours
            case "bury":
                assert self.source.bury(delivery, "model") is ours
            case "later":
                assert self.source.later(delivery, 5) is ours
            case _:
                self.renew(receipt, delivery, ours)
        if not ours or how == "renew":
            return
        del self.held[receipt]
        last = delivery.attempt > TIMING.max_retries
        self.settled[delivery.unique_id] += how == "acknowledge"
        self.buried[delivery.unique_id] += how == "bury" or (how == "later" and last)
        if how == "later" and not last:
            self.held[receipt] = (delivery, self.bench.clock.now + 5)
            self.returned.add(receipt)

    def renew(self, receipt: str, delivery: Delivery, ours: bool) -> None:
        renewed = self.source.renew(delivery, 50)
        assert (renewed is not None) is ours
        if renewed is not None:
            del self.held[receipt]
            self.held[renewed.receipt] = (renewed, self.bench.clock.now + 50)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        assert Counter(seen.unique_id for seen in self.inspector.visible(TOPIC)) == +self.visible
        assert Counter(seen.unique_id for seen in self.inspector.discarded()) == +self.discarded
        open_halves = Counter((seen.half_id, seen.checks) for seen in self.inspector.open_halves())
        assert open_halves == Counter(self.waiting.values())
        assert Counter(seen.unique_id for seen in self.inspector.dead_letters("points")) == +self.buried

    @invariant()
    def the_group_holds_no_more_than_there_is(self) -> None:
        assert self.seen_by_the_group() <= self.visible

    def seen_by_the_group(self) -> Counter[str]:
        return Counter(delivery.unique_id for delivery, _ in self.held.values()) + self.settled + self.buried


@pytest.mark.timeout(300)
def test_the_broker_does_what_the_model_says() -> None:
    # Given random histories; When broker and model run side by side; Then they agree at each step
    run_state_machine_as_test(
        BrokerMachine,
        settings=settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )
