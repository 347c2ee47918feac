"""The remoting transport at a real broker that closes idle connections, is too busy, or has no room on its disk."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from outbox.brokers.base import Answer, Check, Half, Outage, Outgoing, Prepared, Refused, Stored
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.identity import fresh_token, unique_ids
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import Asked, end_one, message, prepare_one, publish
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.waiting import expect_soon

DEADLINE: Final = 60.0
#: Seconds after which the broker closes a connection on which nothing happens (120 by default).
IDLE: Final = 2
#: Of the store's own file system; the broker takes nothing above nine tenths of it.
DISK_BYTES: Final = 512 * 1024 * 1024
IDLE_TRANSPORT: Final = """
import sys, time
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.pop import PopSource

namesrv, topic, group = sys.argv[1:]
broker, source = RemotingBroker(namesrv, group), PopSource(namesrv, group, [topic])
broker.listen([topic], lambda check, answer: None)
while not broker.checks_ready():
    time.sleep(0.02)
source.receive(1, 0)
wall, cpu = time.monotonic(), time.process_time()
source.receive(1, 2)
print((time.process_time() - cpu) / (time.monotonic() - wall))
"""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a small file system of its own; a plain one where the tests may not mount."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "outbox-tests", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def cluster(disk: Path) -> Iterator[RocketMQ]:
    """A cluster of this module's own, since its settings are changed and its disk is filled."""
    settings = {
        "serverChannelMaxIdleTimeSeconds": IDLE,
        "storePathRootDir": disk,
        "storePathCommitLog": disk / "commitlog",
    }
    with require(lambda: RocketMQ(settings=settings)) as started:
        warm_up(started)
        yield started


@pytest.fixture
def topic(cluster: RocketMQ) -> str:
    name = f"topic-{fresh_token()}"
    cluster.create_topics([name, f"{name}-b"], queues=4)
    return name


@pytest.fixture
def opened(cluster: RocketMQ) -> Iterator[Callable[[], RemotingBroker]]:
    """Opens transports of one group."""
    group = f"group-{fresh_token()}"
    every: list[RemotingBroker] = []

    def open_one() -> RemotingBroker:
        every.append(RemotingBroker(cluster.namesrv, group))
        return every[-1]

    yield open_one
    for each in every:
        each.close()


def warm_up(cluster: RocketMQ) -> None:
    """Sends until the broker, which is busy while it is cold, stores a half."""
    broker = RemotingBroker(cluster.namesrv, "warm-up")
    cluster.create_topics(["warm-up", "warm-up-b"])
    try:
        expect_soon(
            lambda: isinstance(broker.prepare([message("warm-up")], 10)[0], Stored), "it is warm", within=DEADLINE
        )
    finally:
        broker.close()


def ports(cluster: RocketMQ) -> set[int]:
    """Our own ends of the connections to the broker that are open now."""
    return {
        it.laddr.port
        for it in psutil.Process().net_connections("tcp")
        if it.status == psutil.CONN_ESTABLISHED and it.raddr.port == cluster.broker.port
    }


def flood(broker: RemotingBroker, topic: str) -> list[Prepared]:
    """Many large halves at once."""
    return broker.prepare([Outgoing(topic, b"x" * 30_000, unique_ids.fresh(), "key") for _ in range(400)], timeout=60)


def test_a_connection_that_was_closed_for_idleness_is_opened_again(
    cluster: RocketMQ, opened: Callable[[], RemotingBroker], topic: str
) -> None:
    # Given a sender that pauses for so long that the broker hangs up
    broker = opened()
    before: set[int] = set()

    def connected() -> bool:
        halves.append(prepare_one(broker, message(topic)))
        before.update(ports(cluster))
        return bool(before)

    halves: list[Half] = []
    expect_soon(connected, "a connection is open", within=DEADLINE)
    expect_soon(lambda: not before & ports(cluster), "the broker hangs up", within=DEADLINE)
    # When it goes on; Then the next call just works, whichever it is
    assert end_one(broker, halves[0], Verdict.COMMIT).confirmation is Confirmation.CONFIRMED
    again = ports(cluster)
    expect_soon(lambda: not again & ports(cluster), "the broker hangs up again", within=DEADLINE)
    prepare_one(broker, message(topic))


def test_a_listener_whose_connection_is_closed_registers_again(
    cluster: RocketMQ, opened: Callable[[], RemotingBroker], topic: str
) -> None:
    # Given a listener on whose connection nothing happens, so that the broker forgets it
    asked = Asked()
    listener = opened()
    listener.listen([topic], asked)
    expect_soon(listener.checks_ready, "the listener is registered", within=DEADLINE)
    before = ports(cluster)
    expect_soon(lambda: not before & ports(cluster), "the broker hangs up", within=DEADLINE)
    # When a half is left open; Then the broker asks all the same
    half = prepare_one(opened(), message(topic))
    expect_soon(lambda: asked.times(half) > 0, "the broker asks", within=DEADLINE)
    assert asked.of(half)[-1].half.topic == topic


def test_a_handler_that_hangs_holds_up_checks_and_nothing_else(
    opened: Callable[[], RemotingBroker], topic: str
) -> None:
    # Given more open halves than there are threads for checks, and a handler that does not return
    broker = opened()
    waiting: list[str] = []
    over = threading.Event()

    def hang(check: Check, answer: Answer) -> None:
        waiting.append(check.half.half_id)
        over.wait(DEADLINE)

    broker.listen([topic], hang)
    for _ in range(8):
        prepare_one(broker, message(topic))
    expect_soon(lambda: len(waiting) >= 4, "every thread hangs", within=DEADLINE)
    # When halves are sent and ended over the same connection; Then they are, and the registration stays, or comes back
    # where the broker saw nothing of us for so long that it hung up
    for _ in range(5):
        publish(broker, message(topic))
    expect_soon(broker.checks_ready, "it is registered", within=DEADLINE)
    over.set()


def test_an_overloaded_broker_is_an_outage_and_nothing_is_stored_twice(
    cluster: RocketMQ, opened: Callable[[], RemotingBroker], topic: str
) -> None:
    # Given a broker that gives up whatever has waited at all
    broker = opened()
    cluster.broker.configure({"waitTimeMillsInSendQueue": 0})
    # When many halves are sent at once, until it is too much
    outcomes: list[Prepared] = []

    def busy() -> bool:
        outcomes.extend(flood(broker, topic))
        return any("busy" in it.reason for it in outcomes if isinstance(it, Outage))

    expect_soon(busy, "it is too much", within=DEADLINE)
    # Then what is not stored is an outage in the broker's own words, which no row is charged for
    assert {type(it) for it in outcomes} <= {Stored, Outage}
    # When it has time again; Then everything is stored
    cluster.broker.configure({"waitTimeMillsInSendQueue": 10_000})
    expect_soon(lambda: {type(it) for it in flood(broker, topic)} == {Stored}, "all are stored", within=DEADLINE)


def test_an_idle_transport_uses_no_processor(cluster: RocketMQ, topic: str) -> None:
    # Given a process with a listener and a consumer that have nothing to do; When some time passes
    command = [sys.executable, "-c", IDLE_TRANSPORT, cluster.namesrv, topic, f"group-{fresh_token()}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3 * DEADLINE)
    # Then they wait, and do not spin: a thread that did would use most of a core, or its fair share of one
    assert float(ran.stdout) < 0.15


def test_a_full_disk_is_an_outage(
    cluster: RocketMQ, opened: Callable[[], RemotingBroker], topic: str, disk: Path
) -> None:
    # Given a broker whose disk is fuller than it accepts
    if not os.environ.get("OUTBOX_TEST_LONG"):
        pytest.skip("the broker first looks at its disk a minute after its start: make conformance")
    if not os.path.ismount(disk):
        pytest.skip("a small file system can be mounted by root only")
    broker = opened()
    prepare_one(broker, message(topic))
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _free(disk) - DISK_BYTES * 9 // 100)
    # When it has noticed; Then halves are outages: nothing is stored, and no row is charged
    outcomes: list[Prepared] = []

    def sent() -> Prepared:
        outcomes.extend(broker.prepare([message(topic)], timeout=10))
        return outcomes[-1]

    expect_soon(lambda: "code 14" in getattr(sent(), "reason", ""), "the broker notices", within=2 * DEADLINE)
    assert isinstance(outcomes[-1], Outage)
    # When there is room again; Then halves are stored, and none was refused meanwhile
    filler.unlink()
    expect_soon(lambda: isinstance(sent(), Stored), "the broker notices that there is room", within=DEADLINE)
    assert not any(isinstance(it, Refused) for it in outcomes)


def _free(folder: Path) -> int:
    """Bytes that the file system has left."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
