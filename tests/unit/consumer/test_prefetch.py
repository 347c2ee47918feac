"""The queue before the workers: of a lane one at a time, in order; nothing forgotten, no more than allowed."""

import threading
from collections import Counter, defaultdict, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outbox.consumer.held import Held
from outbox.consumer.prefetch import Prefetch
from tests.unit.consumer.fakes import DEADLINE, delivery

MOST = 8
MOST_BYTES = 100
MESSAGES = 2000

lanes = st.sampled_from([None, "a", "b", "c"])
sizes = st.integers(0, 40)


class AnyOrderOfCalls(RuleBasedStateMachine):
    """What a receiver and any number of workers may do, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.prefetch = Prefetch(MOST, MOST_BYTES)
        self.came: defaultdict[str | None, deque[Held]] = defaultdict(deque)
        self.out: list[Held] = []

    def free(self) -> int:
        """How many may be taken: of each lane one, unless one of it is out."""
        busy = {held.delivery.lane for held in self.out}
        return sum(
            len(waiting) if lane is None else int(bool(waiting) and lane not in busy)
            for lane, waiting in self.came.items()
        )

    def waiting(self) -> list[Held]:
        return [held for waiting in self.came.values() for held in waiting]

    @rule(coming=st.lists(st.tuples(lanes, sizes), min_size=1, max_size=MOST))
    def receive(self, coming: list[tuple[str | None, int]]) -> None:
        """As the receiver does: no more than there is room for."""
        room = self.prefetch.room(0)
        batch = [Held(delivery(lane=lane, body=b"x" * size)) for lane, size in coming[:room]]
        self.prefetch.put(batch)
        for held in batch:
            self.came[held.delivery.lane].append(held)

    @precondition(lambda self: self.free())
    @rule(most=st.integers(1, 5))
    def take(self, most: int) -> None:
        """As a worker does, for one message or a batch."""
        free = self.free()
        taken = self.prefetch.take(most)
        assert len(taken) == min(most, free)
        for held in taken:
            assert held is self.came[held.delivery.lane].popleft()
        self.out += taken
        out_of_each = Counter(held.delivery.lane for held in self.out if held.delivery.lane is not None)
        assert set(out_of_each.values()) <= {1}

    @precondition(lambda self: self.out)
    @rule(choice=st.data())
    def finish(self, choice: st.DataObject) -> None:
        """A worker has told the broker about some of what it took."""
        done = choice.draw(st.lists(st.sampled_from(self.out), min_size=1, unique=True))
        self.prefetch.finish(done)
        self.out = [held for held in self.out if held not in done]

    @invariant()
    def bounded(self) -> None:
        """By count always; by bytes up to the batch that overshot them."""
        waiting = self.waiting()
        assert len(waiting) <= MOST
        full = sum(len(held.delivery.body) for held in waiting) >= MOST_BYTES
        assert self.prefetch.room(0) == (0 if full else MOST - len(waiting))

    def teardown(self) -> None:
        """An orderly stop: everything that waited is given back, and no worker gets more."""
        assert Counter(map(id, self.prefetch.close())) == Counter(map(id, self.waiting()))
        self.prefetch.finish(self.out)
        assert self.prefetch.take() == []
        assert self.prefetch.room(0) == 0


AnyOrderOfCalls.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_calls = AnyOrderOfCalls.TestCase


def test_workers_in_parallel_keep_the_order_of_each_lane() -> None:
    # Given more workers than lanes
    prefetch, lock, everything = Prefetch(50, 10**6), threading.Lock(), threading.Event()
    running: Counter[str | None] = Counter()
    seen: defaultdict[str | None, list[int]] = defaultdict(list)
    overlaps: list[str | None] = []

    def work() -> None:
        while taken := prefetch.take():
            lane = taken[0].delivery.lane
            with lock:
                running[lane] += 1
                overlaps.extend([lane] if running[lane] > 1 else [])
                seen[lane].append(int(taken[0].delivery.body))
            with lock:
                running[lane] -= 1
                if sum(map(len, seen.values())) == MESSAGES:
                    everything.set()
            prefetch.finish(taken)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    # When they work on many messages
    coming = deque(range(MESSAGES))
    while coming:
        room = prefetch.room(DEADLINE)
        batch = [coming.popleft() for _ in range(min(room, len(coming)))]
        prefetch.put([Held(delivery(lane=f"lane-{number % 5}", body=str(number).encode())) for number in batch])
    assert everything.wait(DEADLINE)
    assert prefetch.close() == []
    for worker in workers:
        worker.join(DEADLINE)
    # Then no two of a lane ran at once, and each lane came in its order
    assert overlaps == []
    assert seen == {f"lane-{lane}": list(range(lane, MESSAGES, 5)) for lane in range(5)}


def held(number: int, lane: str | None = None) -> list[Held]:
    return [Held(delivery(lane=lane)) for _ in range(number)]


def test_the_broker_is_asked_for_batches() -> None:
    # Given a queue that is full, and a receiver that waits for room
    prefetch, found, asking = Prefetch(MOST, MOST_BYTES, batch=4), list[int](), threading.Event()
    prefetch.put(held(MOST))

    def receive() -> None:
        asking.set()
        found.append(prefetch.room(DEADLINE))

    receiver = threading.Thread(target=receive)
    receiver.start()
    assert asking.wait(DEADLINE)
    # When workers take one after another
    for _ in range(4):
        prefetch.take()
    receiver.join(DEADLINE)
    # Then it asks once there is room for a batch
    assert found == [4]


def test_workers_that_wait_are_worth_a_request_of_any_size() -> None:
    # Given a queue that is full of one lane
    prefetch = Prefetch(MOST, MOST_BYTES, batch=4)
    prefetch.put(held(MOST, lane="a"))
    # When one of it is out, and the others have to wait behind it
    prefetch.take()
    # Then the broker is asked at once, for others might be worked on
    assert prefetch.room(DEADLINE) == 1
