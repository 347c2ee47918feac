"""The push consumer in real processes: it ends, it may be killed, and the inbox absorbs what it delivers twice."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from outbox.brokers.base import Sent
from outbox.brokers.native.library import load
from outbox.brokers.native.returns import Returns
from outbox.brokers.native.source import PushSource
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.source import Delivery
from outbox.consumer import Inbox, Message, RunnerSettings, run
from outbox.identity import fresh_token
from tests.acceptance.conftest import deployed, rocketmq_stack
from tests.acceptance.deployment import DEADLINE, ROOT, Deployment
from tests.acceptance.shop import effects
from tests.contracts.rig import message
from tests.services.librocketmq import librocketmq
from tests.services.require import require
from tests.services.rocketmq import create_topics
from tests.waiting import expect_soon

#: Has a delivery out; what follows differs.
PREAMBLE = """
import os, sys
from outbox.brokers.native.library import load
from outbox.brokers.native.source import PushSource

source = PushSource(sys.argv[1], sys.argv[3], [sys.argv[2]], load())
while not (received := source.receive(1, 1.0)):
    pass
"""
FORKED = """
child = os.fork()
if child == 0:
    try:
        source.receive(1, 1.0)
    except ValueError as refused:
        print(refused, flush=True)
        os._exit(7)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert source.acknowledge(received[0])
sys.exit(status)
"""


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client as the loader finds it, and its log in the test's folder."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(require(librocketmq).parent))
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOG_DIR", str(tmp_path / "client-log"))


@pytest.fixture
def deployment(rocketmq: str, tmp_path: Path) -> Iterator[Deployment]:
    """SQLite and a real broker, reached through the native client."""
    url, topic, visible = rocketmq_stack(rocketmq)
    native = url.replace("rocketmq://", "rocketmq+native://")
    yield from deployed(tmp_path, f"sqlite:///{tmp_path}/shop.db", native, topic, visible)


def send(rocketmq: str, topic: str, keys: Sequence[str], lane: str | None = None) -> None:
    """One message for each key; a lane puts them into one queue, from which they are pulled together.

    A broker that is busy refuses some of many, so it is asked until it has taken them all.
    """
    broker = RemotingBroker(rocketmq, f"group-{fresh_token()}")
    left = [message(topic, key=key, body=key.encode(), lane=lane) for key in keys]

    def all_sent() -> bool:
        outcomes = broker.send(left, timeout=20)
        left[:] = [each for each, outcome in zip(left, outcomes, strict=True) if not isinstance(outcome, Sent)]
        return not left

    expect_soon(all_sent, "everything is sent", within=DEADLINE)
    broker.close()


@pytest.mark.parametrize("fault", ["consumer.in_handler=kill", "consumer.before_acknowledge=kill"])
def test_what_a_dead_consumer_leaves_takes_effect_once(deployment: Deployment, rocketmq: str, fault: str) -> None:
    # Given a consumer that dies before or after its first effect is there
    keys = [f"order-{number}" for number in range(40)]
    send(rocketmq, deployment.topic, keys)
    command = ("consume", "tests.acceptance.shop:inbox", "--group", f"outbox-{deployment.topic}")
    killed = deployment.outbox(*command, fault=fault)
    deployment.wait("the consumer is dead", lambda: deployment.killed(killed))
    # When two others consume
    others = [deployment.outbox(*command) for _ in range(2)]
    deployment.wait("both are at work", lambda: all("consuming" in deployment.said(other) for other in others))
    deployment.wait("every message took effect", lambda: set(deployment.effects()) >= set(keys))
    # Then each key has one effect, and both end by themselves on SIGTERM
    for other in others:
        other.send_signal(signal.SIGTERM)
    assert [other.wait(DEADLINE) for other in others] == [0, 0]
    assert sorted(deployment.effects()) == sorted(keys)


def child(rocketmq: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a child process, which receives a message, to its end; one that hangs fails the test."""
    _, topic, _ = rocketmq_stack(rocketmq)
    send(rocketmq, topic, ["k"])
    command = [sys.executable, "-c", PREAMBLE + code, rocketmq, topic, f"group-{fresh_token()}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)


@pytest.mark.parametrize("code", ["sys.exit(3)", "source.close(); sys.exit(3)", "del source; sys.exit(3)", FORKED])
def test_a_process_ends_with_a_delivery_in_its_hands(rocketmq: str, code: str) -> None:
    # Given a process that has received and not answered; When it ends in its own way; Then it does end
    done = child(rocketmq, code)
    # And a forked child was told at once that it cannot use its parent's source
    forked = code is FORKED
    assert done.returncode == (7 if forked else 3), done.stderr
    assert ("open a source after the fork" in done.stdout) is forked


class Counting(PushSource):
    """Counts what it has acknowledged."""

    acknowledged: Counter[str]

    def acknowledge(self, delivery: Delivery) -> bool:
        confirmed = super().acknowledge(delivery)
        self.acknowledged[delivery.keys[0]] += confirmed
        return confirmed


def consume_until(rocketmq: str, inbox: Inbox, done: Callable[[Counter[str]], bool]) -> None:
    """Consumes until ``done`` holds for what was acknowledged, by key; stops in order."""
    group, stop = f"group-{fresh_token()}", threading.Event()
    create_topics(rocketmq, [f"%RETRY%{group}"], queues=1)
    source = Counting(rocketmq, group, inbox.topics, load(str(require(librocketmq))))
    source.acknowledged = Counter()
    settings = RunnerSettings(receive_wait=0.2)
    thread = threading.Thread(target=run, args=(inbox, lambda *_: source, stop), kwargs={"settings": settings})
    thread.start()
    try:
        expect_soon(lambda: done(source.acknowledged), "enough is acknowledged", within=DEADLINE)
    finally:
        stop.set()
        thread.join()


def test_a_batch_that_comes_again_for_one_message_takes_effect_once(
    rocketmq: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given messages of one queue, one of which fails at first, and a broker that confirms no single return
    keys = [f"k{number}" for number in range(8)]
    send(rocketmq, deployment.topic, keys, lane="one")
    monkeypatch.setattr(Returns, "later", lambda *_: False)
    calls: Counter[str] = Counter()

    def step(received: Message, session: Session) -> None:
        calls[str(received.key)] += 1
        session.execute(effects.insert().values(key=received.key))
        if received.key == "k5" and calls["k5"] == 1:
            raise ValueError("after the effect")

    inbox = Inbox(deployment.database.engine, consumer="stock")
    inbox.handler(topic=deployment.topic)(step)
    # When they are consumed, and the client sends back the whole batch; Then what was acknowledged before comes again
    consume_until(rocketmq, inbox, lambda seen: set(seen) == set(keys) and any(seen[key] > 1 for key in keys[:5]))
    # And each key took effect once
    assert sorted(deployment.effects()) == keys
    assert calls == Counter({**dict.fromkeys(keys, 1), "k5": 2})
