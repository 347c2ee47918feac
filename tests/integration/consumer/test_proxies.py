"""The whole consumer behind a proxy, opened as ``outbox consume`` opens it."""

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.brokers.base import Outage, Outgoing, Sent
from outbox.consumer import Inbox, Message, RunnerSettings, run
from outbox.identity import fresh_token
from outbox.settings import load
from outbox.store.database import Database
from outbox.wiring import open_broker, open_source
from tests.contracts.rig import message
from tests.integration.consumer.child import HELD
from tests.integration.consumer.shop import keys_done, metadata, record
from tests.integration.consumer.test_processes import child, line
from tests.integration.consumer.test_sources import Watched
from tests.services.rocketmq import create_topics
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE = 180.0
#: Seconds; longer than the machine stands still.
INVISIBLE = 2 * HELD
SETTINGS = RunnerSettings(invisible=INVISIBLE, receive_wait=0.2)
SLOW = "slow"


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """One database is enough here."""
    with request.getfixturevalue("postgresql_copies")(None) as url:
        yield url


@pytest.fixture
def store(store_url: str) -> Iterator[Engine]:
    """Where the effects are."""
    database = Database(store_url)
    metadata.create_all(database.engine)
    yield database.engine
    database.close()


def send(broker_url: str, *messages: Outgoing) -> set[str]:
    """Sends through the proxy, again where a cold broker was overloaded; the unique ids."""
    broker, left = open_broker(load(broker_url=broker_url, origin="orders")), list(messages)

    def all_sent() -> bool:
        outcomes = broker.send(left, 60)
        assert {type(outcome) for outcome in outcomes} <= {Sent, Outage}, outcomes
        left[:] = [each for each, outcome in zip(left, outcomes, strict=True) if isinstance(outcome, Outage)]
        return not left

    expect_soon(all_sent, "everything sent", within=DEADLINE)
    broker.close()
    return {each.unique_id for each in messages}


def test_each_message_takes_effect_once_behind_a_proxy(
    rocketmq: str, rocketmq_proxy: str, store_url: str, store: Engine
) -> None:
    # Given 200 messages in two topics, of which a consumer process held some when it was killed
    broker_url, group = f"rocketmq+grpc://{rocketmq_proxy}", f"group-{fresh_token()}"
    topics = [f"topic-{fresh_token()}" for _ in range(2)]
    create_topics(rocketmq, topics, queues=4, message_type="NORMAL")
    keys = [f"k{number:03}" for number in range(200)]
    batch = [message(topics[number % 2], key=key, lane=None) for number, key in enumerate(keys)]
    sent = send(broker_url, *batch)
    with child("hold", store_url, broker_url, group, topics[0]) as holder:
        held = {line(holder) for _ in range(2)}
        holder.kill()
    assert held <= set(keys)
    # And one message whose handler outlasts its invisible time
    sent |= send(broker_url, message(topics[1], key=SLOW, lane=None))
    opened: list[Watched] = []
    attempts: dict[str, list[int]] = defaultdict(list)
    slow = [each for each in sent if each not in {other.unique_id for other in batch}]
    inbox = Inbox(store, consumer="stock")

    @inbox.handler(topic=topics[0])
    @inbox.handler(topic=topics[1])
    def step(received: Message, session: Session) -> None:
        attempts[received.key].append(received.attempt)
        if received.key == SLOW:
            expect_soon(lambda: opened[0].renewals[slow[0]] >= 4, "four renewals", within=DEADLINE)
        record(received, session)

    def opening(names: object, name: str) -> Watched:
        assert sorted(names) == sorted(topics)  # type: ignore[call-overload]
        opened.append(
            Watched(open_source(load(broker_url=broker_url, origin="orders", invisible=INVISIBLE), topics, name))
        )
        return opened[0]

    # When another process's runner consumes both topics
    stop = threading.Event()
    consuming = threading.Thread(target=run, args=(inbox, opening, stop), kwargs={"settings": SETTINGS, "group": group})
    consuming.start()
    try:
        expect_soon(
            lambda: bool(opened) and set(opened[0].acknowledged) == sent, "everything acknowledged", within=DEADLINE
        )
    finally:
        stop.set()
        consuming.join(DEADLINE)
    # Then each took effect once, what was held came again, and the slow one stayed with its handler
    assert keys_done(store) == sorted([*keys, SLOW])
    assert min(attempts[key][0] for key in held) > 1
    assert len(attempts[SLOW]) == 1
