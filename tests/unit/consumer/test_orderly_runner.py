"""The runner of an orderly group: lanes one at a time, others in parallel; what follows the last failure."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from outbox.brokers.source import Delivery
from outbox.consumer import Outcome, Processed, Retry, RunnerSettings
from outbox.consumer.schedule import ORDERLY_DELAYS, RETRY_DELAYS
from tests.unit.consumer.fakes import DEADLINE, FakeSource, FakeStrategy, delivery
from tests.unit.consumer.running import running

QUICK = RunnerSettings(receive_wait=0.02)


def test_a_lane_waits_for_its_head_and_others_pass() -> None:
    # Given a head that takes long, what another member got again behind it, and another lane
    head, follower = delivery(lane="one"), delivery(lane="one")
    others = [delivery(lane="two"), delivery()]
    started, done = threading.Event(), threading.Event()

    def policy(received: Delivery) -> Outcome:
        if received is head:
            started.set()
            done.wait(DEADLINE)
        return Processed()

    source, strategy = FakeSource(), FakeStrategy(policy)
    source.put(head, follower, *others)
    with running(source, strategy, QUICK):
        assert started.wait(DEADLINE)
        # When the others are done, with workers to spare
        source.expect(lambda: len(source.acknowledged) == 2, "the others are acknowledged")
        # Then the follower has not begun; and it does once the head is acknowledged
        assert follower.unique_id not in strategy.processed
        done.set()
        source.expect(lambda: len(source.acknowledged) == 4, "all are acknowledged")
    assert set(source.acknowledged[:2]) == {each.unique_id for each in others}
    assert source.acknowledged[2:] == [head.unique_id, follower.unique_id]


@dataclass(slots=True)
class Batches(FakeStrategy):
    """Takes up to ten, and remembers the lanes of each batch."""

    batch: int = 10
    lanes: list[list[str | None]] = field(default_factory=list)

    def process_batch(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        self.lanes.append([each.lane for each in deliveries])
        return [self.process(each) for each in deliveries]


def test_a_batch_holds_one_of_a_lane() -> None:
    # Given several messages of some lanes
    source, strategy = FakeSource(), Batches()
    messages = [delivery(lane=lane) for lane in "aabbaab"]
    source.put(*messages)
    # When they are processed in batches
    with running(source, strategy, QUICK):
        source.expect(lambda: len(source.acknowledged) == len(messages), "all are acknowledged")
    # Then no batch holds two of a lane, and each lane came in its order
    assert all(len(set(lanes)) == len(lanes) for lanes in strategy.lanes)
    for lane in "ab":
        wanted = [each.unique_id for each in messages if each.lane == lane]
        assert [each for each in strategy.processed if each in wanted] == wanted


@pytest.mark.parametrize("parks", [True, False])
def test_the_last_failure_can_be_parked(parks: bool) -> None:
    # Given a message that never succeeds, and a consumer that parks, if it has a table for it
    source, strategy = FakeSource(), FakeStrategy(lambda _: Retry("always"), parks=parks)
    message = delivery(lane="one")
    source.put(message)
    settings = RunnerSettings(receive_wait=0.02, retry_delays=(0.0, 0.0), after_retries="park")
    with running(source, strategy, settings):
        # When its retries are used up
        source.expect(lambda: bool(source.acknowledged or source.buried), "told")
    # Then it lies in the table, or else among the dead letters, and its lane goes on
    reason = "after 3 attempts: always"
    assert strategy.parked == ([(message.unique_id, reason)] if parks else [])
    assert source.acknowledged == ([message.unique_id] if parks else [])
    assert source.buried == ([] if parks else [(message.unique_id, reason)])


def test_an_orderly_group_tries_as_often_in_less_time() -> None:
    assert len(ORDERLY_DELAYS) == len(RETRY_DELAYS)
    assert sum(ORDERLY_DELAYS) == 16 * 60 + 8
    assert list(ORDERLY_DELAYS) == sorted(ORDERLY_DELAYS)
