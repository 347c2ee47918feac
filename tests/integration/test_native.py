"""The native transport in real processes: they end, they may be killed, and nothing of the client outlives its use."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import deployed, rocketmq_stack
from tests.acceptance.deployment import DEADLINE, ROOT, Deployment
from tests.services.librocketmq import librocketmq
from tests.services.require import require

#: Opens a broker and stores a half; what follows differs.
PREAMBLE = """
import os, sys
from outbox.brokers.base import Outgoing, Stored
from outbox.brokers.native.broker import NativeBroker
from outbox.brokers.native.library import load
from outbox.identity import unique_ids

def prepare(broker):
    outcome = None
    while not isinstance(outcome, Stored):  # the client gives up after three seconds, however busy the machine
        (outcome,) = broker.prepare([Outgoing(sys.argv[2], b"a", unique_ids.fresh(), "key")], timeout=20)

broker = NativeBroker(sys.argv[1], "native-children", load())
prepare(broker)
"""
FORKED = """
child = os.fork()
if child == 0:
    try:
        prepare(broker)
    except ValueError as refused:
        print(refused, flush=True)
        os._exit(7)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
prepare(broker)
sys.exit(status)
"""
#: A message that is not freed costs 624 bytes: 3.7 MB of these.
GROWTH = """
import psutil
from outbox.brokers.base import Sent

def send(batches):
    for _ in range(batches):
        left = [Outgoing(sys.argv[2], b"x" * 512, unique_ids.fresh(), "key") for _ in range(200)]
        while left:
            outcomes = broker.send(left, timeout=60)
            left = [each for each, outcome in zip(left, outcomes) if not isinstance(outcome, Sent)]
    return psutil.Process().memory_info().rss

before = send(10)
print(send(30) - before)
broker.close()
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


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that is asked to stop; one that hangs fails the test."""
    process.send_signal(signal.SIGTERM)
    return process.wait(DEADLINE)


def publish(deployment: Deployment, count: int) -> None:
    """Orders and their messages, one each, in the end."""
    assert deployment.produce(count).wait(DEADLINE) == 0
    deployment.wait("no row owes a message", deployment.finished)
    keys = deployment.committed()
    deployment.wait("all are visible", lambda: len(deployment.visible()) >= len(keys))
    assert sorted(deployment.visible()) == sorted(keys)


def listens(deployment: Deployment, process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has said so."""
    return any(f"/{process.pid}/" in name for name in deployment.operations.figures().heartbeats)


@pytest.mark.parametrize("fault", ["relay.before_decide=kill", "relay.before_commit=kill"])
def test_what_a_dead_relay_leaves_is_finished_by_others_which_end_when_told_to(
    deployment: Deployment, fault: str
) -> None:
    # Given a relay that dies with halves at the broker, before or after its decision
    killed = deployment.outbox("relay", fault=fault)
    assert deployment.produce(20).wait(DEADLINE) == 0
    deployment.wait("the relay is dead", lambda: deployment.killed(killed))
    # When others run; Then each order has its message, once, and the halves that lost are gone
    relay, checkback = deployment.outbox("relay"), deployment.outbox("checkback")
    publish(deployment, 1)
    deployment.wait("both listen", lambda: listens(deployment, relay) and listens(deployment, checkback))
    # And both end by themselves on SIGTERM (the client hangs in a process that does not shut it down)
    assert [ended(relay), ended(checkback)] == [0, 0]


def child(rocketmq: str, topic: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a child process to its end; one that hangs fails the test."""
    command = [sys.executable, "-c", PREAMBLE + code, rocketmq, topic]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)


@pytest.mark.parametrize("code", ["sys.exit(3)", "broker.close(); sys.exit(3)", "del broker; sys.exit(3)"])
def test_a_process_ends_whether_or_not_it_closed_its_broker(rocketmq: str, code: str) -> None:
    # Given a process that has stored a half; When it ends in its own way; Then it does end, with its own exit code
    _, topic, _ = rocketmq_stack(rocketmq)
    done = child(rocketmq, topic, code)
    assert done.returncode == 3, done.stderr


def test_a_forked_child_is_told_at_once(rocketmq: str) -> None:
    # Given a process that has sent; When its forked child sends over the same broker
    _, topic, _ = rocketmq_stack(rocketmq)
    done = child(rocketmq, topic, FORKED)
    # Then it is refused with the remedy, and the parent goes on
    assert done.returncode == 7, done.stderr
    assert "open a broker after the fork" in done.stdout


def test_messages_are_freed(rocketmq: str) -> None:
    # Given a process that has warmed up; When it sends 6,000 messages more; Then it has not grown by them
    _, topic, _ = rocketmq_stack(rocketmq)
    done = child(rocketmq, topic, GROWTH)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1_500_000
