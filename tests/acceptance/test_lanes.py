"""Lanes at a real broker: producers write at once, two relays ship, one is killed and another takes its place."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from outbox import Outbox
from outbox.brokers.base import KEY, ROW_ID, SHARDING_KEY
from outbox.identity import fresh_token
from tests.acceptance.conftest import deployed, rocketmq_stack
from tests.acceptance.deployment import Deployment, patient
from tests.services.databases import fresh_database
from tests.services.rocketmq.admin import Admin

pytestmark = patient

LANES = [f"order-{number}" for number in range(8)]
TRANSACTIONS = 40
PRODUCERS = 3


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, rocketmq: str, tmp_path: Path) -> Iterator[Deployment]:
    """A database and a real broker."""
    with fresh_database(request.getfixturevalue(request.param)) as url:
        yield from deployed(tmp_path, url, *rocketmq_stack(rocketmq))


def produce(shop: Deployment, seed: int) -> int:
    """Transactions that add to lanes of a transactional and of a plain topic; how many rows."""
    plain = f"{shop.topic}-other"
    outbox, dice, count = Outbox(origin="shop", plain_topics={plain}), random.Random(seed), 0
    for _ in range(TRANSACTIONS):
        topic, lanes = dice.choice((shop.topic, plain)), sorted(dice.sample(LANES, 2))
        with shop.database.transaction() as connection:
            for lane in lanes:
                outbox.add(connection, topic=topic, key=fresh_token(), payload={"seed": seed}, lane=lane)
                count += 1
    return count


class Placed(NamedTuple):
    """A message of a lane."""

    queue: int
    row_id: int
    key: str


def lanes_of(rocketmq: str, topic: str) -> Mapping[str, Sequence[Placed]]:
    """The messages of each lane, in the order of their queues."""
    found: dict[str, list[Placed]] = defaultdict(list)
    with Admin(rocketmq) as admin:
        for it in sorted(admin.read(topic), key=lambda it: (it.queue_id, it.queue_offset)):
            placed = Placed(it.queue_id, int(it.properties[ROW_ID]), it.properties[KEY])
            found[it.properties[SHARDING_KEY]].append(placed)
    return found


def row_ids(rocketmq: str, shop: Deployment) -> set[int]:
    """Of all messages in both topics."""
    topics = (lanes_of(rocketmq, topic) for topic in (shop.topic, f"{shop.topic}-other"))
    return {it.row_id for lanes in topics for lane in lanes.values() for it in lane}


def test_lanes_keep_their_order_when_a_relay_is_killed(shop: Deployment, rocketmq: str) -> None:
    # Given two relays, and producers that add to the same lanes at the same time
    first, _ = shop.outbox("relay"), shop.outbox("relay")
    for _ in range(2):
        shop.outbox("consume", "tests.acceptance.shop:inbox", "--group", f"shop-{shop.topic}", "--orderly")
    with ThreadPoolExecutor(PRODUCERS) as threads:
        producing = [threads.submit(produce, shop, seed) for seed in range(PRODUCERS)]
        # When one relay is killed in the middle of it, and another one is started
        shop.wait("messages are visible", lambda: len(shop.visible()) > 5)
        first.kill()
        shop.outbox("relay")
        rows = sum(it.result() for it in producing)
    shop.wait("every row is published", shop.finished)
    shop.wait("every message to be in its queue", lambda: len(row_ids(rocketmq, shop)) >= rows)
    # Then each lane lies in one queue in the order of its rows: exactly once, or at least once where that is promised
    exactly, at_least = lanes_of(rocketmq, shop.topic), lanes_of(rocketmq, f"{shop.topic}-other")
    published = 0
    for lane in (*exactly.values(), *at_least.values()):
        ids = list(dict.fromkeys(it.row_id for it in lane))
        assert ids == sorted(ids)
        assert len({it.queue for it in lane}) == 1
        published += len(ids)
    assert published == rows
    assert sum(len(lane) for lane in exactly.values()) == sum(len(set(lane)) for lane in exactly.values())
    assert len({lane[0].queue for lane in exactly.values()}) > 1
    # And so it takes effect at an orderly group
    shop.wait("every message has had its effect", lambda: len(shop.effects()) >= sum(map(len, exactly.values())))
    effects = shop.effects()
    for lane in exactly.values():
        keys = [it.key for it in lane]
        assert [key for key in effects if key in set(keys)] == keys
