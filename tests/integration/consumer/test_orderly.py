"""Orderly groups on a real broker, with consumers that fail at random and are killed."""

from contextlib import ExitStack

from sqlalchemy.engine import Engine

from tests.contracts.remoting_rig import remoting_rig, remoting_topics  # noqa: F401 -- fixtures
from tests.contracts.rig import Rig, eventually, message
from tests.integration.consumer.shop import effects_in_order
from tests.integration.consumer.test_processes import child
from tests.integration.consumer.test_sources import store  # noqa: F401 -- a fixture

LANES = ("ann", "bob", "cid", "dan", "eve", "fay")
EACH = 10
#: Seconds for everything, on a machine that does other things too; a killed consumer holds its queues for three.
DEADLINE = 120.0


def test_lanes_take_effect_in_order_whatever_fails_and_dies(
    rocketmq: str,
    remoting_rig: Rig,  # noqa: F811
    store: Engine,  # noqa: F811
) -> None:
    # Given lanes of messages in a FIFO topic
    topic, group = remoting_rig.fresh_topic(), remoting_rig.fresh_group()
    broker = remoting_rig.open(remoting_rig.fresh_group())
    for number in range(EACH):
        broker.send([message(topic, key=f"{lane}-{number}", lane=lane) for lane in LANES], timeout=10)
    url = store.url.render_as_string(hide_password=False)

    def done(wanted: int) -> None:
        eventually(lambda: len(effects_in_order(store)) >= wanted, DEADLINE, f"{wanted} effects")

    with ExitStack() as stack:
        # When three consumers work on them, and two of them are killed
        arguments = (url, f"rocketmq://{rocketmq}", group, topic)
        first, second, _ = (stack.enter_context(child("lanes", *arguments, seed)) for seed in "abc")
        done(10)
        first.kill()
        done(30)
        second.kill()
        done(len(LANES) * EACH)
    # Then nothing is lost or repeated, and each lane took effect in its order
    effects = effects_in_order(store)
    assert len(effects) == len(LANES) * EACH
    for lane in LANES:
        assert [key for key in effects if key.startswith(lane)] == [f"{lane}-{number}" for number in range(EACH)]
