"""Orderly groups on a real broker: handlers fail at random, consumers are killed, the broker crashes."""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.consumer import Message
from tests.contracts.remoting_rig import (
    RemotingRig,
    fresh_topics,
    remoting_rig,  # noqa: F401 -- a fixture
    remoting_topics,  # noqa: F401 -- a fixture
)
from tests.contracts.rig import Rig, message, send_all
from tests.integration.consumer.child import MANY
from tests.integration.consumer.shop import effects_in_order, record
from tests.integration.consumer.test_processes import child, line
from tests.integration.consumer.test_sources import SETTINGS, consuming, store  # noqa: F401 -- a fixture
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.waiting import expect_soon

LANES = ("ann", "bob", "cid", "dan", "eve", "fay")
EACH = 10
#: Seconds for everything, on a machine that does other things too; a killed consumer holds its queues for three.
DEADLINE = 180.0


def send(rig: Rig, topic: str) -> None:
    """Each lane's messages one after another."""
    broker = rig.open(rig.fresh_group())
    for number in range(EACH):
        send_all(broker, [message(topic, key=f"{lane}-{number}", lane=lane) for lane in LANES])


def await_effects(store: Engine, wanted: int) -> None:  # noqa: F811
    expect_soon(lambda: len(effects_in_order(store)) >= wanted, f"{wanted} effects", within=DEADLINE)


def assert_in_order(store: Engine) -> None:  # noqa: F811
    """Nothing is lost or repeated, and each lane took effect in its order."""
    effects = effects_in_order(store)
    assert len(effects) == len(LANES) * EACH
    for lane in LANES:
        assert [key for key in effects if key.startswith(lane)] == [f"{lane}-{number}" for number in range(EACH)]


def test_lanes_take_effect_in_order_whatever_fails_and_dies(
    rocketmq: str,
    remoting_rig: Rig,  # noqa: F811
    store: Engine,  # noqa: F811
) -> None:
    # Given lanes of messages in a FIFO topic
    topic, group = remoting_rig.fresh_topic(), remoting_rig.fresh_group()
    send(remoting_rig, topic)
    url = store.url.render_as_string(hide_password=False)
    with ExitStack() as stack:
        # When three consumers that fail at random work on them, and two of them are killed
        arguments = (url, f"rocketmq://{rocketmq}", group, topic)
        consumers = [stack.enter_context(child("lanes", *arguments, seed)) for seed in "abc"]
        assert [line(each) for each in consumers] == ["ready"] * 3
        first, second, _ = consumers
        await_effects(store, 10)
        first.kill()
        await_effects(store, 30)
        second.kill()
        await_effects(store, len(LANES) * EACH)
    # Then first effects are in order
    assert_in_order(store)


@pytest.fixture
def cluster() -> Iterator[RocketMQ]:
    """One that may crash."""
    if not os.environ.get("OUTBOX_TEST_LONG"):
        pytest.skip("a broker of its own, killed and started again: make conformance")
    with require(RocketMQ) as started:
        yield started


def test_lanes_take_effect_in_order_across_a_crash_of_the_broker(
    cluster: RocketMQ,
    store: Engine,  # noqa: F811
) -> None:
    # Given lanes in work
    rig = RemotingRig(cluster.namesrv, fresh_topics(cluster.namesrv))
    topic, group = rig.fresh_topic(), rig.fresh_group()
    send(rig, topic)
    dice = random.Random(1)

    def step(received: Message, session: Session) -> None:
        record(received, session)
        if dice.random() < 0.2:
            raise ValueError("after the effect")

    quick = replace(SETTINGS, retry_delays=(0.1,) * MANY)
    with consuming(rig, topic, group, store, step, orderly=True, settings=quick):
        # When the broker is killed, forgets acknowledgements of seconds, and comes back
        await_effects(store, 20)
        cluster.kill_broker()
        cluster.restart_broker()
        await_effects(store, len(LANES) * EACH)
    # Then first effects are in order
    assert_in_order(store)
    rig.close()
