"""What a look-up says after a crash has cost the broker a part of its message index.

A broker that died throws the index file in use away and builds it again only from the commit-log file on that its
checkpoint names (``IndexService.load``, ``CommitLog.recoverAbnormally``): messages that lie before it stay visible to
consumers and are found by no query any more.
"""

import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from outbox.brokers.base import Outgoing
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.identity import fresh_token, unique_ids
from outbox.verdict import Sighting
from tests.contracts.rig import look_up
from tests.integration.test_remoting_crash import commit_until_confirmed, store, visible
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
#: What the test cluster's commit-log files hold, and what the recovery goes back before its checkpoint.
FILE_BYTES = 16 * 1024 * 1024
RECOVERY_MARGIN_MS = 3000


@pytest.fixture
def cluster() -> Iterator[RocketMQ]:
    """A cluster that writes its checkpoint every second instead of every minute."""
    with require(lambda: RocketMQ(settings={"flushConsumeQueueThoroughInterval": 1000})) as started:
        yield started


def checkpoint(cluster: RocketMQ) -> int:
    """The moment (milliseconds) up to which commit log and consume queues are on disk (``StoreCheckpoint``)."""
    content = (cluster.broker.folder / "store" / "checkpoint").read_bytes()
    on_disk: tuple[int, int] = struct.unpack_from(">2q", content)
    return min(on_disk)


def written(cluster: RocketMQ) -> int:
    """Where the commit log ends."""
    with Admin(cluster.namesrv) as admin:
        return int(admin.runtime(cluster.broker.url)["commitLogMaxOffset"])


def move_on(cluster: RocketMQ, broker: RemotingBroker, topic: str) -> None:
    """Fills the commit-log file in use, and writes until a recovery would begin behind it."""
    filler = [Outgoing(topic, b"x" * 1_000_000, unique_ids.fresh(), "filler")]
    expect_soon(lambda: bool(broker.send(filler, 10)) and written(cluster) > FILE_BYTES, "the file is full")
    following = int(time.time() * 1000)
    small = [Outgoing(topic, b"x", unique_ids.fresh(), "filler")]
    expect_soon(
        lambda: bool(broker.send(small, 10)) and checkpoint(cluster) - RECOVERY_MARGIN_MS > following,
        "the checkpoint has moved on",
    )


def test_a_message_that_a_crash_took_out_of_the_index_is_not_called_absent(cluster: RocketMQ) -> None:
    # Given a committed half and one that nobody ended, both found as they are
    topic = f"topic-{fresh_token()}"
    cluster.create_topics([topic, f"{topic}-b"], queues=4)
    broker = RemotingBroker(cluster.namesrv, f"group-{fresh_token()}")
    since = datetime.now(UTC)
    committed, left_open = store(broker, topic, 2)
    commit_until_confirmed(broker, [committed])
    expect_soon(lambda: look_up(broker, committed, since) is Sighting.VISIBLE, "the look-up sees it")
    expect_soon(lambda: look_up(broker, left_open, since) is Sighting.ABSENT, "the other one is absent")
    # When the broker dies after its log has moved on, and comes back
    move_on(cluster, broker, f"{topic}-b")
    (recent,) = store(broker, topic, 1)
    cluster.kill_broker()
    cluster.restart_broker()
    # Then look-ups tell of halves that its recovery went back to, or that came later, and do not of the others
    younger = (recent, *store(broker, topic, 1))
    expect_soon(
        lambda: {look_up(broker, half, since) for half in younger} == {Sighting.ABSENT}, "younger halves are absent"
    )
    assert visible(cluster, topic) == [committed.half_id]
    assert {look_up(broker, half, since) for half in (committed, left_open)} == {Sighting.CANNOT_TELL}
    broker.close()
