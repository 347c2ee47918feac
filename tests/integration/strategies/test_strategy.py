"""What every dedup strategy keeps, on every store that it runs on."""

import threading
import unicodedata
from collections import Counter
from dataclasses import replace

import pytest

from outbox.consumer import (
    Duplicate,
    Filtered,
    InProgress,
    Message,
    NoKey,
    Outcome,
    Park,
    Permanent,
    Processed,
    Retry,
)
from tests.integration.strategies.rig import StrategyRig
from tests.unit.consumer.fakes import delivery


class Failing:
    """A step that fails as often as it is told to, and then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)

    def __call__(self, _message: Message) -> None:
        if self._errors:
            raise self._errors.pop(0)


def test_a_repeat_is_known_whether_redelivered_or_sent_again(strategy: StrategyRig) -> None:
    # Given a message that was processed
    consumer = strategy.consumer()
    first = delivery(keys=("k",))
    assert consumer.process(first) == Processed()
    # When it is delivered again, and sent again under another id / Then both are known
    assert consumer.process(replace(first, attempt=2)) == Duplicate()
    assert consumer.process(delivery(keys=("k",))) == Duplicate()
    # And to another process of the same consumer as well
    assert strategy.consumer().process(first) == Duplicate()
    assert strategy.effects() == ["k"]


def test_a_handler_that_failed_is_called_again(strategy: StrategyRig) -> None:
    consumer, received = strategy.consumer(Failing(ValueError("first"))), delivery(keys=("k",))
    assert consumer.process(received) == Retry("ValueError: first")
    if strategy.transactional:
        assert strategy.effects() == []
    assert consumer.process(received) == Processed()
    assert consumer.process(received) == Duplicate()
    assert strategy.effects() == ["k"] * (1 if strategy.transactional else 2)


def test_what_a_handler_calls_permanent_is_parked(strategy: StrategyRig) -> None:
    consumer = strategy.consumer(Failing(Permanent("no such order")))
    outcome = consumer.process(delivery(keys=("k",)))
    assert isinstance(outcome, Park)
    assert "no such order" in outcome.reason


def test_an_exit_inside_a_handler_is_no_success(strategy: StrategyRig) -> None:
    consumer, received = strategy.consumer(Failing(SystemExit(3))), delivery(keys=("k",))
    with pytest.raises(SystemExit):
        consumer.process(received)
    assert consumer.process(received) == Processed()


def test_without_a_key_nothing_is_executed(strategy: StrategyRig) -> None:
    consumer = strategy.consumer()
    outcomes = [consumer.process(delivery(keys=keys)) for keys in ((), ("a", "b"), (" ",))]
    assert [type(outcome) for outcome in outcomes] == [NoKey] * 3
    assert consumer.process(delivery(topic="another")) == Filtered()
    assert strategy.effects() == []


def test_a_key_is_known_to_its_own_consumer_only(strategy: StrategyRig) -> None:
    received = delivery(keys=("k",))
    assert [strategy.consumer(name=name).process(received) for name in ("stock", "points")] == [Processed()] * 2
    assert (strategy.effects("stock"), strategy.effects("points")) == (["k"], ["k"])


def test_the_same_key_with_another_payload_is_never_taken_for_a_repeat(strategy: StrategyRig) -> None:
    consumer = strategy.consumer()
    assert consumer.process(delivery(keys=("k",), body=b"1")) == Processed()
    outcome = consumer.process(delivery(keys=("k",), body=b"2"))
    assert isinstance(outcome, Park) is strategy.compares_payload
    assert strategy.effects() == ["k"]


ODD_KEYS = [
    *("A1", "a1", "a1 ", " a1", "a1\u00a0", "a 1", "ß", "ss", "'; --", "%", "\\", "\U0001f4b3", "{k}"),
    *("x" * 300, "x" * 299 + "y"),
    *(unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD")),
]


def test_keys_that_look_alike_are_apart(strategy: StrategyRig) -> None:
    consumer = strategy.consumer()
    deliveries = [delivery(properties={"outbox-key": key}) for key in ODD_KEYS]
    outcomes = [consumer.process(each) for each in deliveries * 2]
    assert outcomes == [Processed()] * len(ODD_KEYS) + [Duplicate()] * len(ODD_KEYS)
    assert strategy.effects() == sorted(ODD_KEYS)


def test_one_key_at_the_same_moment_has_one_effect(strategy: StrategyRig) -> None:
    # Given four threads, each with a consumer of its own, on a barrier
    barrier, outcomes = threading.Barrier(4), list[Outcome]()
    received = delivery(keys=("k",))

    def take() -> None:
        consumer = strategy.consumer()
        barrier.wait()
        outcomes.append(consumer.process(received))

    threads = [threading.Thread(target=take) for _ in range(4)]
    # When they go
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then one has done it, the others know, or come again
    counted = Counter(type(outcome) for outcome in outcomes)
    assert counted[Processed] == 1
    assert set(counted) <= {Processed, Duplicate, InProgress, Retry}
    assert strategy.effects() == ["k"]


def test_a_store_that_is_away_is_an_outage_and_no_effect(strategy: StrategyRig) -> None:
    outcome = strategy.away().process(delivery(keys=("k",)))
    assert isinstance(outcome, Retry)
    assert outcome.outage
    assert strategy.effects() == []
