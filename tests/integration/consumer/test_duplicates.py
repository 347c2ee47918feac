"""Duplicates as a real broker makes them, each provoked: one effect is left.

What is delivered again after a failure, and what is sent again under another id, is in ``test_sources.py`` and
``test_retries.py``.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.brokers.remoting.connections import Connections
from outbox.consumer import Message
from outbox.lifecycle import Verdict
from outbox.store.database import Database
from tests.contracts.conftest import *  # noqa: F403 -- the rigs' fixtures
from tests.contracts.rig import Rig, end_one, ids, message, publish
from tests.integration.consumer.shop import keys_done, metadata, record
from tests.integration.consumer.test_sources import DEADLINE, SETTINGS, Watched, consuming, send
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
#: ``RequestCode.INVOKE_BROKER_TO_RESET_OFFSET``, which ``mqadmin resetOffsetByTime`` sends.
RESET_OFFSET = 222


@pytest.fixture  # type: ignore[no-redef]
def rig(remoting_rig: Rig) -> Rig:
    """A real broker alone: these are its own ways."""
    return remoting_rig


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Where the effects are."""
    with request.getfixturevalue("postgresql_copies")(None) as url:
        database = Database(url)
        metadata.create_all(database.engine)
        yield database.engine
        database.close()


def test_a_half_that_was_committed_twice_has_one_effect(rig: Rig, topic: str, group: str, store: Engine) -> None:
    # Given a half of which the broker made two messages, and the same fact sent again under another id
    broker = rig.open(rig.fresh_group())
    half = publish(broker, message(topic, key="k", body=b"k"))
    end_one(broker, half, Verdict.COMMIT)
    (again,) = send(rig, topic, "k")
    expect_soon(
        lambda: sorted(ids(rig, topic)) == sorted([half.half_id, half.half_id, again]), "three", within=DEADLINE
    )
    # When they are consumed / Then all are acknowledged, and one had an effect
    with consuming(rig, topic, group, store, record) as watched:
        expect_soon(lambda: len(watched.acknowledged) >= 3, "three acknowledged", within=DEADLINE)
    assert keys_done(store) == ["k"]


def test_a_reset_of_the_offsets_repeats_no_effect(
    rig: Rig, topic: str, group: str, store: Engine, rocketmq: str
) -> None:
    # Given messages that took effect
    keys = [f"k{number}" for number in range(10)]
    sent = set(send(rig, topic, *keys))
    with consuming(rig, topic, group, store, record) as watched:
        expect_soon(lambda: set(watched.acknowledged) == sent, "acknowledged", within=DEADLINE)
    # When an operator sets the group back to the beginning
    reset_offsets(rocketmq, topic, group)
    # Then everything comes again, is acknowledged, and has no second effect
    with consuming(rig, topic, group, store, record) as watched:
        expect_soon(lambda: set(watched.acknowledged) == sent, "acknowledged again", within=DEADLINE)
    assert keys_done(store) == keys


def reset_offsets(name_server: str, topic: str, group: str) -> None:
    """As ``mqadmin resetOffsetByTime -s 0``, which needs no consumer to be running (5.x)."""
    connections = Connections()
    fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true", "queueId": "-1", "offset": "-1"}
    with Admin(name_server) as admin:
        for address in admin.brokers().values():
            connections.ask(address, RESET_OFFSET, fields, timeout=DEADLINE)
    connections.close()


def test_an_invisible_time_that_lapses_under_the_handler_repeats_no_effect(
    rig: Rig,
    topic: str,
    group: str,
    store: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Given a handler that outlasts the invisible time, which nobody extends
    monkeypatch.setattr(Watched, "renew", lambda *_: None)
    calls: list[int] = []

    def step(received: Message, session: Session) -> None:
        calls.append(received.attempt)
        record(received, session)
        expect_soon(lambda: "another owner has its key" in caplog.text, "delivered again meanwhile", within=DEADLINE)

    (sent,) = send(rig, topic, "k")
    # When it is delivered a second time while the first handler runs
    with consuming(rig, topic, group, store, step, settings=replace(SETTINGS, invisible=3.0)) as watched:
        expect_soon(lambda: sent in watched.acknowledged, "acknowledged", within=DEADLINE)
    # Then the second one left it alone, the first one's acknowledgement came too late, and a third one was a repeat
    assert len(calls) == 1
    assert "too late for its acknowledgement" in caplog.text
    assert keys_done(store) == ["k"]
