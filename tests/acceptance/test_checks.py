"""What a real broker is told about halves that nobody ended: PostgreSQL, a real RocketMQ, a check-back process."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox import Outbox
from outbox.brokers.base import KEY, ORIGIN, ROW_ID, TOKEN, Half, Outgoing
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.identity import unique_ids
from outbox.lifecycle import State
from outbox.store.claims import Claims
from outbox.store.identity import Identity
from tests.acceptance.conftest import deployed, rocketmq_stack
from tests.acceptance.deployment import Deployment, group_of, patient
from tests.contracts.rig import prepare_one
from tests.services.databases import fresh_database
from tests.services.postgres import Postgres
from tests.services.require import require

pytestmark = patient

#: Answers that leave a half as it is: the broker is told UNKNOWN. ``wait`` and ``contended`` are for a look-up or a
#: write that got no turn in time, ``unknown`` is for a lease that lasts, ``error`` for a database that does not answer.
LEAVE_OPEN = {"error", "unknown", "wait", "contended"}


class Orphans:
    """Leaves halves at the broker as a dead relay would."""

    def __init__(self, deployment: Deployment, namesrv: str) -> None:
        self._database = deployment.database
        self._topic = deployment.topic
        self._broker = RemotingBroker(namesrv, group_of(deployment.topic))
        self._origin = Identity(deployment.database).origin("shop")

    def leased_row(self, key: str, lease: float) -> tuple[int, str]:
        """A row under a lease of so many seconds, and its token."""
        with self._database.transaction() as connection:
            row_id = Outbox(origin="shop").add(connection, topic=self._topic, key=key, payload={"key": key})
        (attempt,) = Claims(self._database).claim(1, 1 << 20, lease)
        assert attempt.row_id == row_id
        return row_id, attempt.token

    def half(self, row_id: int, token: str, key: str, origin: str | None = None) -> Half:
        """A half that nobody will end."""
        properties = {ORIGIN: origin or self._origin, ROW_ID: str(row_id), TOKEN: token, KEY: key}
        message = Outgoing(self._topic, b"orphan", unique_ids.fresh(), key, properties=properties)
        return prepare_one(self._broker, message)

    def close(self) -> None:
        self._broker.close()


@pytest.fixture
def shop(postgres: str, rocketmq: str, tmp_path: Path) -> Iterator[Deployment]:
    """PostgreSQL and a real broker."""
    with fresh_database(postgres) as url:
        yield from deployed(tmp_path, url, *rocketmq_stack(rocketmq))


@pytest.fixture
def orphans(shop: Deployment, rocketmq: str) -> Iterator[Orphans]:
    """Halves on the shop's broker."""
    orphans = Orphans(shop, rocketmq)
    yield orphans
    orphans.close()


def answers(shop: Deployment, checkback: "subprocess.Popen[bytes]", half: Half) -> list[str]:
    """What the process answered to each check of a half, by its log."""
    return re.findall(rf"checked half={half.half_id} times=\d+ (\w+)", shop.said(checkback))


def before_commit(said: list[str]) -> set[str]:
    """The answers before the one that lets the half out; a later one is about what no longer matters, such as that to a
    check that was under way at that moment."""
    return set(said[: said.index("commit")])


def test_a_superseded_half_is_rolled_back(shop: Deployment, orphans: Orphans) -> None:
    # Given a half of an attempt that another one has replaced
    row_id, _ = orphans.leased_row("order-1", lease=600)
    half = orphans.half(row_id, "superseded", "order-1")
    # When a check-back process is asked
    checkback = shop.outbox("checkback")
    # Then it is rolled back, however often it is asked about before the broker has done so; the row goes on as it was
    shop.wait("the rollback", lambda: "rollback" in answers(shop, checkback, half))
    assert set(answers(shop, checkback, half)) == {"rollback"}
    assert shop.visible() == []
    assert shop.states()[State.PENDING] == 1


def test_a_foreign_half_is_left_to_its_owner(shop: Deployment, orphans: Orphans) -> None:
    # Given a half of another database under the same group, and one of ours that is due
    row_id, token = orphans.leased_row("order-1", lease=0.001)
    foreign = orphans.half(row_id, token, "order-1", origin="shop/another-database")
    own = orphans.half(row_id, token, "order-1")
    # When
    checkback = shop.outbox("checkback")
    # Then only ours comes out
    shop.wait("our own half", shop.finished)
    shop.wait("the foreign half", lambda: len(answers(shop, checkback, foreign)) > 1)
    assert set(answers(shop, checkback, foreign)) == {"foreign"}
    assert before_commit(answers(shop, checkback, own)) <= LEAVE_OPEN
    assert shop.arrived(1) == ["order-1"]


def test_with_the_database_stopped_every_check_is_unknown_and_nothing_is_lost(rocketmq: str, tmp_path: Path) -> None:
    with require(Postgres) as server, fresh_database(server.url) as url:
        shop = next(deployed(tmp_path, url, *rocketmq_stack(rocketmq)))
        orphans = Orphans(shop, rocketmq)
        try:
            # Given a half of an attempt that is about to run out, and a check-back whose database goes away
            row_id, token = orphans.leased_row("order-1", lease=1)
            checkback = shop.outbox("checkback")
            shop.wait("the check-back to listen", lambda: "listening" in shop.said(checkback))
            server.kill()
            half = orphans.half(row_id, token, "order-1")
            # When the broker asks, the answer is UNKNOWN
            shop.wait("the answer UNKNOWN", lambda: "error" in answers(shop, checkback, half))
            # Then the half lives on, and comes out once the database is back
            server.restart()
            shop.wait("the half to be adopted", lambda: shop.states()[State.DELIVERED] == 1)
            assert shop.arrived(1) == ["order-1"]
            assert "error" in before_commit(answers(shop, checkback, half)) <= LEAVE_OPEN
            assert checkback.poll() is None
        finally:
            orphans.close()
            shop.stop()
