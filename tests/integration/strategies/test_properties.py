"""What holds of every strategy whatever fails in whatever order, over the runner and a broker in memory."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from outbox.brokers.source import Delivery
from outbox.consumer import Message, Permanent, Runner, RunnerSettings
from outbox.consumer.remembering import Executing
from outbox.store.database import Database
from tests.integration.consumer.shop import keys_done
from tests.integration.strategies.rig import RIGS, Step, Surroundings
from tests.unit.consumer.fakes import FakeSource, delivery

#: What a handler does with a message, one call after another; afterwards it succeeds.
FAILURES: Final = ("fails", "exits", "is permanent")
#: What becomes of acknowledgements and returns, one after another; afterwards all arrive.
LOSSES: Final = ("lost", "raises", "arrives")
#: No retry is used up before the plan is at its end.
SETTINGS: Final = RunnerSettings(
    threads=3, invisible=60.0, retry_delays=(0.0,) * 1000, receive_wait=0.02, outage_rest=0.01
)
EXACTLY_ONCE: Final = sorted(set(RIGS) - {"redis", "asynchronous"})


@dataclass(slots=True)
class Plan:
    """Messages by their keys, repeats among them, and everything that goes wrong."""

    keys: list[str]
    failures: dict[str, list[str]]
    losses: list[str]


plans = st.builds(
    Plan,
    keys=st.lists(st.sampled_from("abcde"), min_size=1, max_size=12),
    failures=st.dictionaries(st.sampled_from("abcde"), st.lists(st.sampled_from(FAILURES), max_size=3)),
    losses=st.lists(st.sampled_from(LOSSES), max_size=8),
)


@dataclass(slots=True)
class Losing(FakeSource):
    """Loses answers by plan; what it lost, it delivers again. ``durable`` tells what the store holds at that moment."""

    losses: list[str] = field(default_factory=list)
    durable: Callable[[], set[str]] = set
    #: Keys that were acknowledged before anything durable was known of them.
    too_early: list[str] = field(default_factory=list)
    #: Not acknowledged, not buried.
    owed: set[str] = field(default_factory=set)

    def acknowledge(self, delivery: Delivery) -> bool:
        if delivery.keys[0] not in self.durable():
            self.too_early.append(delivery.keys[0])
        return self._answered(delivery, super(Losing, self).acknowledge)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        return self._answered(delivery, lambda each: super(Losing, self).bury(each, reason))

    def _answered(self, delivery: Delivery, answer: Callable[[Delivery], bool]) -> bool:
        with self._changed:
            loss = self.losses.pop() if self.losses else "arrives"
        if loss == "arrives":
            confirmed = answer(delivery)
            with self._changed:
                self.owed.discard(delivery.unique_id)
                self._changed.notify_all()
            return confirmed
        self.put(delivery)
        if loss == "raises":
            raise ConnectionError("the broker does not answer")
        return False


def acting(failures: dict[str, list[str]]) -> Step:
    """A handler's step that goes wrong by plan."""
    lock, left = threading.Lock(), {key: list(each) for key, each in failures.items()}

    def step(message: Message) -> None:
        with lock:
            what = left[message.key].pop() if left.get(message.key) else ""
        if what == "fails":
            raise ValueError(what)
        if what == "exits":
            raise SystemExit(what)
        if what == "is permanent":
            raise Permanent(what)

    return step


@contextmanager
def running(source: FakeSource, consumer: Executing) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=Runner(source, consumer, SETTINGS).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def parked(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        keys = connection.execute(sa.text("SELECT key FROM outbox_parked")).scalars()
        return {bytes(key).decode() for key in keys}


def emptied(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in ("effects", "outbox_inbox", "outbox_parked", "ledger"):
            connection.execute(sa.text(f"DELETE FROM {table}"))


def drained(strategy: str, plan: Plan, on: Surroundings) -> tuple[Counter[str], set[str], list[str]]:
    """Effects by key, what was parked or buried, and what was acknowledged too early, after everything was consumed."""
    rig = RIGS[strategy](on)
    emptied(on.engine)
    source = Losing(losses=list(plan.losses))
    source.durable = lambda: set(keys_done(on.engine)) | parked(on.engine)
    deliveries = [delivery(keys=(key,), body=key.encode()) for key in plan.keys]
    source.owed = {each.unique_id for each in deliveries}
    keys = {each.unique_id: each.keys[0] for each in deliveries}
    source.put(*deliveries)
    with running(source, rig.consumer(acting(plan.failures))):
        source.expect(lambda: not source.owed, f"everything consumed by {strategy}")
    buried = {keys[unique_id] for unique_id, _ in source.buried}
    return Counter(keys_done(on.engine)), parked(on.engine) | buried, source.too_early


@pytest.fixture(scope="module")
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    """One SQLite database for all examples; the Redis remembers by epoch, and each example has one of its own."""
    folder: Path = tmp_path_factory.mktemp("properties")
    with request.getfixturevalue("sqlite_copies")(folder) as url:
        database = Database(url, statement_timeout=30)
        yield Surroundings(database.engine, lambda: str(request.getfixturevalue("redis_server")))
        database.close()


def fresh(on: Surroundings) -> Surroundings:
    return Surroundings(on.engine, on.redis)


PROPERTY = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("strategy", EXACTLY_ONCE)
@PROPERTY
@given(plan=plans)
def test_each_fact_has_one_effect_or_waits_for_an_operator(strategy: str, plan: Plan, on: Surroundings) -> None:
    done, given_up, too_early = drained(strategy, plan, fresh(on))
    # Then what was sent is done or given up, nothing is done twice, and nothing was acknowledged before it was durable
    assert set(plan.keys) == set(done) | given_up
    assert set(done.values()) <= {1}
    assert too_early == []


@PROPERTY
@given(plan=plans)
def test_effects_outside_sql_happen_at_least_once_or_wait_for_an_operator(plan: Plan, on: Surroundings) -> None:
    done, given_up, too_early = drained("redis", plan, fresh(on))
    assert set(plan.keys) == set(done) | given_up
    assert too_early == []
