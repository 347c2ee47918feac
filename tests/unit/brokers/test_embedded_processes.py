"""The embedded broker shared by real processes, some of which are killed."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from outbox.brokers.base import Answer, Check
from outbox.brokers.embedded import EmbeddedBroker, EmbeddedInspector, VisibleMessage
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from tests.unit.brokers.embedded_bench import prepare
from tests.unit.brokers.embedded_worker import BATCH, FAST, GROUP, TOPIC, message, publish_batch
from tests.waiting import expect_soon

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that does not exist yet."""
    return tmp_path / "broker.db"


class Workers:
    """Starts programs on one file and kills what is left of them."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack

    def start(self, program: str) -> "subprocess.Popen[str]":
        """One more process."""
        command = [sys.executable, "-m", "tests.unit.brokers.embedded_worker", program, str(self._path)]
        worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._stack.enter_context(worker)
        self._stack.callback(worker.kill)
        return worker


@pytest.fixture
def workers(path: Path) -> Iterator[Workers]:
    """Processes on the file."""
    with ExitStack() as stack:
        yield Workers(path, stack)


def next_line(worker: "subprocess.Popen[str]") -> str:
    """The next line that the program prints; fails if it ended instead."""
    assert worker.stdout is not None
    line = worker.stdout.readline().strip()
    assert line, f"the program ended with {worker.wait()}"
    return line


def finish(worker: "subprocess.Popen[str]") -> list[str]:
    """All that the program prints until it ends well."""
    out, _ = worker.communicate(timeout=DEADLINE)
    assert worker.returncode == 0
    return out.split("\n")[:-1]


def visible(path: Path) -> list[VisibleMessage]:
    """What lies in the topic."""
    with EmbeddedInspector(path, FAST) as inspector:
        return inspector.visible(TOPIC)


def copies_by_key(path: Path) -> Counter[str]:
    """How many messages are visible under each key; fails if one is there twice."""
    seen = visible(path)
    assert len({each.unique_id for each in seen}) == len(seen)
    return Counter(each.key for each in seen)


def test_processes_that_start_at_once_share_a_new_file(path: Path, workers: Workers) -> None:
    # Given no file; When four producers start at once
    producers = [workers.start("produce") for _ in range(4)]
    names = [name for producer in producers for name in finish(producer)]
    # Then every batch is there, whole, once
    assert len(names) == 40
    assert copies_by_key(path) == Counter(dict.fromkeys(names, BATCH))


def test_consumers_in_two_processes_share_one_queue(path: Path, workers: Workers) -> None:
    # Given messages; When two processes of one group consume
    broker = EmbeddedBroker(path, GROUP, FAST)
    for number in range(4):
        publish_batch(broker, str(number))
    consumers = [workers.start("consume") for _ in range(2)]
    received = [unique_id for consumer in consumers for unique_id in finish(consumer)]
    # Then each message came to one of them, once
    assert sorted(received) == sorted(each.unique_id for each in visible(path))
    broker.close()


def test_a_producer_killed_in_the_middle_leaves_whole_batches(path: Path, workers: Workers) -> None:
    # Given two producers at work
    producers = [workers.start("produce-for-ever") for _ in range(2)]
    confirmed = [next_line(producer) for producer in producers for _ in range(3)]
    # When both are killed
    for producer in producers:
        producer.kill()
        producer.wait()
    # Then what was confirmed is there, every batch is whole, and the file goes on
    copies = copies_by_key(path)
    assert set(confirmed) <= set(copies)
    assert set(copies.values()) == {BATCH}
    broker = EmbeddedBroker(path, GROUP, FAST)
    publish_batch(broker, "after")
    assert copies_by_key(path)["after"] == BATCH
    broker.close()


def test_a_process_killed_while_it_holds_a_check(path: Path, workers: Workers) -> None:
    # Given a half, and a listener that hangs in its check
    broker = EmbeddedBroker(path, GROUP, FAST)
    half = prepare(broker, message())
    holder = workers.start("hold")
    assert next_line(holder) == half.half_id
    # When that process is killed and another one listens
    holder.kill()
    holder.wait()
    asked: list[str] = []

    def commit_once(check: Check, answer: Answer) -> None:
        asked.append(check.half.half_id)
        answer(Verdict.COMMIT if len(asked) == 1 else Verdict.ROLLBACK, monotonic() + 60)

    broker.listen([TOPIC], commit_once)
    # Then the registration of the dead one expires, the half is asked about again, and ends
    with EmbeddedInspector(path, FAST) as inspector:
        expect_soon(lambda: bool(inspector.visible(TOPIC)), "the message is visible", within=DEADLINE)
        expect_soon(lambda: not inspector.open_halves(), "the half has ended", within=DEADLINE)
    assert [each.unique_id for each in visible(path)] == [half.half_id]
    broker.close()


def test_checks_cross_processes(path: Path, workers: Workers) -> None:
    # Given a listener in another process; When a half is left open here; Then it is asked about there
    listener = workers.start("hold")
    broker = EmbeddedBroker(path, GROUP, FAST)
    half = prepare(broker, message())
    assert next_line(listener) == half.half_id
    broker.close()


def test_a_forked_child_opens_the_file_anew(path: Path, workers: Workers) -> None:
    # Given a process that forks with a broker in use
    said = finish(workers.start("fork"))
    # Then parent and child both published, and the child did not take itself for a listener
    assert said == ["child 0"]
    assert copies_by_key(path) == Counter({"parent": BATCH, "child": BATCH, "parent again": BATCH})
