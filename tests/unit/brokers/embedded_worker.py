"""Programs that the tests of the embedded broker run as processes of their own, to share a file with and to kill.

``python -m tests.unit.brokers.embedded_worker PROGRAM PATH``; each prints what it has achieved, one line a time.
"""

import os
import sys
import threading

from outbox.brokers.base import Answer, Check, Ending, Outgoing, Stored
from outbox.brokers.embedded import BrokerTiming, EmbeddedBroker, EmbeddedSource
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict

TOPIC = "orders"
GROUP = "shop"
#: Checks and expiries within fractions of a second; checks never run out within a test.
FAST = BrokerTiming(
    transaction_timeout=0.1, check_interval=0.1, max_checks=10_000, listener_expiry=0.5, poll_interval=0.01
)
BATCH = 50


def say(*words: object) -> None:
    """Prints a line at once."""
    print(*words, flush=True)


def message(key: str = "k") -> Outgoing:
    """A message with an identity of its own."""
    return Outgoing(TOPIC, b"\0body", unique_ids.fresh(), key)


def publish_batch(broker: EmbeddedBroker, name: str) -> None:
    """Publishes a batch under one key; returns when the broker has confirmed all of it."""
    outcomes = broker.prepare([message(name) for _ in range(BATCH)], timeout=60)
    halves = [outcome.half for outcome in outcomes if isinstance(outcome, Stored)]
    assert len(halves) == BATCH
    broker.resolve([Ending(half, Verdict.COMMIT) for half in halves], until=monotonic() + 60)


def produce(path: str, batches: int) -> None:
    """Publishes batches and names each one that the broker has confirmed."""
    broker = EmbeddedBroker(path, GROUP, FAST)
    for number in range(batches):
        publish_batch(broker, name := f"{os.getpid()}-{number}")
        say(name)
    broker.close()


def consume(path: str) -> None:
    """Receives and acknowledges until a second passes without a message; names each one."""
    source = EmbeddedSource(path, "points", [TOPIC], settings=FAST)
    while deliveries := source.receive(limit=7, wait=1):
        for delivery in deliveries:
            assert source.acknowledge(delivery)
            say(delivery.unique_id)
    source.close()


def hold(path: str) -> None:
    """Listens, and hangs in the first check."""

    def hang(check: Check, answer: Answer) -> None:
        say(check.half.half_id)
        threading.Event().wait()

    EmbeddedBroker(path, GROUP, FAST).listen([TOPIC], hang)
    threading.Event().wait()


def fork(path: str) -> None:
    """Publishes in the parent, in a forked child, and in the parent again, over one broker object."""
    broker = EmbeddedBroker(path, GROUP, FAST)
    broker.listen([TOPIC], lambda check, answer: None)
    publish_batch(broker, "parent")
    child = os.fork()
    if child == 0:
        ready = broker.checks_ready()
        publish_batch(broker, "child")
        broker.close()
        os._exit(1 if ready else 0)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    publish_batch(broker, "parent again")
    broker.close()


if __name__ == "__main__":
    program, file = sys.argv[1:3]
    match program:
        case "produce":
            produce(file, 10)
        case "produce-for-ever":
            produce(file, 1_000_000)
        case "consume":
            consume(file)
        case "hold":
            hold(file)
        case "fork":
            fork(file)
