"""The runner on a real broker: retries that wait longer each time, the dead letter after the last, and its replay."""

import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.clock import monotonic
from outbox.consumer import Message
from tests.contracts.remoting_rig import remoting_rig, remoting_topics  # noqa: F401 -- fixtures
from tests.contracts.rig import Rig, message, send_all
from tests.integration.consumer.shop import effects_in_order, reasons, record
from tests.integration.consumer.test_sources import (
    DEADLINE,
    SETTINGS,
    consuming,
    group,  # noqa: F401 -- a fixture
    store,  # noqa: F401 -- a fixture
    topic,  # noqa: F401 -- a fixture
)
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DELAYS = (0.5, 1.5)
#: No delivery comes again by itself.
LASTING = replace(SETTINGS, invisible=30.0)
RETRYING = replace(LASTING, retry_delays=DELAYS)


@pytest.fixture
def rig(remoting_rig: Rig) -> Rig:  # noqa: F811 -- the fixture
    """The broker itself."""
    return remoting_rig


def send(rig: Rig, topic: str, *keys: str) -> None:  # noqa: F811
    """One message after another, all in one lane."""
    broker = rig.open(rig.fresh_group())
    for key in keys:
        send_all(broker, [message(topic, key=key, body=key.encode())])


@pytest.mark.parametrize("orderly", [False, True], ids=["ordinary", "orderly"])
def test_retries_grow_until_a_dead_letter_whose_replays_are_absorbed(
    rig: Rig,
    topic: str,  # noqa: F811
    group: str,  # noqa: F811
    store: Engine,  # noqa: F811
    orderly: bool,
) -> None:
    # Given two messages, the first of which fails until somebody mends the cause
    mended = threading.Event()
    tries: list[tuple[int, float]] = []

    def step(received: Message, session: Session) -> None:
        if received.key == "bad":
            tries.append((received.attempt, monotonic()))
        record(received, session)
        if received.key == "bad" and not mended.is_set():
            raise ValueError("not yet")

    send(rig, topic, "bad", "good")
    with consuming(rig, topic, group, store, step, orderly=orderly, settings=RETRYING) as watched:
        # When its retries are used up
        letters = f"%DLQ%{group}"
        expect_soon(lambda: bool(rig.visible(letters)), "a dead letter", within=DEADLINE)
        # Then each try came after its delay, in an orderly group before the other message
        attempts, times = zip(*tries, strict=True)
        assert attempts == (1, 2, 3)
        gaps = [later - sooner for sooner, later in pairwise(times)]
        assert all(gap >= delay for gap, delay in zip(gaps, DELAYS, strict=True))
        expect_soon(lambda: effects_in_order(store) == ["good"], "the other one took effect", within=DEADLINE)
        # When the cause is mended, and the letter is replayed, twice
        mended.set()
        (letter,) = rig.visible(letters)
        assert (letter.key, letter.body) == ("bad", b"bad")
        send(rig, topic, letter.key, letter.key)
        expect_soon(lambda: len(watched.acknowledged) == 3, "the other one and both replays", within=DEADLINE)
    # Then it took effect once, and the second replay did not reach the handler
    assert effects_in_order(store) == ["good", "bad"]
    assert len(tries) == 4
    assert len(watched.buried) == 1


def test_a_lane_goes_on_past_a_message_that_is_parked(
    rig: Rig,
    topic: str,  # noqa: F811
    group: str,  # noqa: F811
    store: Engine,  # noqa: F811
) -> None:
    # Given an orderly group that parks what has failed too often
    order: list[str] = []

    def step(received: Message, session: Session) -> None:
        order.append(received.key)
        record(received, session)
        if received.key == "bad":
            raise ValueError("always")

    send(rig, topic, "before", "bad", "after")
    parking = replace(LASTING, retry_delays=(0.1, 0.1), after_retries="park")
    # When it has
    with consuming(rig, topic, group, store, step, orderly=True, settings=parking) as watched:
        expect_soon(lambda: len(watched.acknowledged) == 3, "all are acknowledged", within=DEADLINE)
    # Then it held its lane while it was tried, and lies in the table
    assert order == ["before", "bad", "bad", "bad", "after"]
    assert effects_in_order(store) == ["before", "after"]
    assert reasons(store) == ["after 3 attempts: ValueError: always"]
    assert rig.visible(f"%DLQ%{group}") == []
