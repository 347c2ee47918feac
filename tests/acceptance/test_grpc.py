"""The main job through a proxy: a relay and its check-back over gRPC, SQLite, a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.lifecycle import State
from tests.acceptance.conftest import deployed, rocketmq_stack
from tests.acceptance.deployment import DEADLINE, Deployment, patient

pytestmark = patient

ORDERS = 20


@pytest.fixture
def shop(rocketmq: str, rocketmq_proxy: str, tmp_path: Path) -> Iterator[Deployment]:
    """A topic for transactional messages behind a proxy."""
    _, topic, visible = rocketmq_stack(rocketmq, "TRANSACTION")
    yield from deployed(tmp_path, f"sqlite:///{tmp_path}/shop.db", f"rocketmq+grpc://{rocketmq_proxy}", topic, visible)


def everything_is_visible(shop: Deployment) -> bool:
    """Or more than once: the answer to one more check, of a broker that had not written down yet that the half has
    ended, makes a copy, which a consumer tells by its key."""
    return set(shop.visible()) == set(shop.committed())


def test_what_a_dead_relay_decided_becomes_visible_by_the_answers_to_checks(shop: Deployment) -> None:
    # Given a relay that dies after its decision, before any COMMIT
    assert shop.produce(ORDERS).wait(timeout=DEADLINE) == 0
    dead = shop.outbox("relay", "--no-checkback", fault="relay.before_commit=kill", OUTBOX_PASSES="1")
    shop.wait("the relay has died", lambda: shop.killed(dead))
    decided = shop.states()[State.COMMITTED]
    assert decided > 0
    assert shop.visible() == []
    # When another relay runs, which cannot end the halves of the dead one by itself
    relay = shop.outbox("relay")
    # Then the broker asks its check-back, and every message becomes visible
    shop.wait("all messages are visible", lambda: everything_is_visible(shop))
    shop.wait("its check-back has answered", lambda: shop.said(relay).count(" commit") >= decided)
    assert everything_is_visible(shop)
