"""A handler that sends on: its effect and its message are one transaction, and the next consumer has one effect."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.brokers.base import Outgoing, Sent
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.pop import PopSource
from outbox.brokers.source import Delivery
from outbox.consumer import Inbox, Message, RunnerSettings, run
from outbox.identity import fresh_token, unique_ids
from tests.acceptance.conftest import deployed, rocketmq_stack
from tests.acceptance.deployment import DEADLINE, Deployment, patient
from tests.acceptance.shop import effects
from tests.services.databases import fresh_database

pytestmark = patient

ORDERS = 30
#: What the producer writes of them: each tenth is rolled back.
WRITTEN = [f"order-{number}" for number in range(ORDERS) if number % 10]
INVISIBLE = 10.0


@pytest.fixture
def shop(rocketmq: str, postgres: str, tmp_path: Path) -> Iterator[Deployment]:
    """PostgreSQL and a real broker."""
    with fresh_database(postgres) as url:
        yield from deployed(tmp_path, url, *rocketmq_stack(rocketmq))


@contextmanager
def consuming(namesrv: str, inbox: Inbox) -> Iterator[None]:
    """A running consumer."""
    stop = threading.Event()

    def source(*_: object) -> PopSource:
        return PopSource(namesrv, f"{inbox.group}-{fresh_token()}", list(inbox.topics), invisible=INVISIBLE)

    settings = RunnerSettings(invisible=INVISIBLE, retry_delays=(1.0,) * 10, receive_wait=0.2)
    thread = threading.Thread(target=run, args=(inbox, source, stop), kwargs={"settings": settings})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE)
    assert not thread.is_alive()


def failing_once(keys: list[str]) -> Callable[[str], None]:
    """Raises the first time for each of the keys."""
    failing = set(keys)

    def check(key: str) -> None:
        if key in failing:
            failing.discard(key)
            raise ValueError("after effect and message")

    return check


def test_what_a_handler_sends_on_is_sent_once(shop: Deployment, rocketmq: str) -> None:
    # Given orders, a handler that has an effect and sends on, at first in vain for some, and a consumer of that
    outbox, shipments = Outbox(origin="shop"), f"{shop.topic}-other"
    check, repeats = failing_once(WRITTEN[::5]), set[str]()
    paid, shipped = (Inbox(shop.database.engine, consumer=name) for name in ("paid", "shipped"))

    def repeated(delivery: Delivery) -> str:
        """Asked for what carries no key of the outbox's."""
        repeats.add(delivery.unique_id)
        return delivery.keys[0]

    @paid.handler(topic=shop.topic, key=repeated)
    def on_paid(message: Message, session: Session) -> None:
        session.execute(effects.insert().values(key=f"paid {message.key}"))
        outbox.add(session, topic=shipments, key=message.key, payload={"order": message.key})
        check(message.key)

    @shipped.handler(topic=shipments)
    def on_shipped(message: Message, session: Session) -> None:
        session.execute(effects.insert().values(key=f"shipped {message.key}"))

    # When a relay ships both topics, the first one's messages are repeated under other ids, and a relay is killed
    assert shop.produce(ORDERS).wait(timeout=DEADLINE) == 0
    relay = shop.outbox("relay")
    with consuming(rocketmq, paid), consuming(rocketmq, shipped):
        shop.wait("the orders to be visible", lambda: sorted(shop.visible()) == sorted(WRITTEN))
        repeat(rocketmq, shop)
        relay.kill()
        shop.outbox("relay")
        wanted = sorted(f"{what} {key}" for what in ("paid", "shipped") for key in WRITTEN)
        shop.wait("every effect", lambda: len(shop.effects()) >= len(wanted))
        shop.wait("every row to be delivered", shop.finished)
        shop.wait("every repeat", lambda: len(repeats) == len(WRITTEN))
    # Then each order has one effect with each of the two consumers
    assert sorted(shop.effects()) == wanted


def repeat(namesrv: str, shop: Deployment) -> None:
    """Sends the orders' messages again, as a producer without an outbox would."""
    broker = RemotingBroker(namesrv, "repeats")
    waiting = [Outgoing(shop.topic, seen.body, unique_ids.fresh(), seen.key, "paid") for seen in shop.messages()]

    def all_sent() -> bool:
        """A busy broker refuses some."""
        outcomes = broker.send(waiting, timeout=20)
        waiting[:] = [each for each, said in zip(waiting, outcomes, strict=True) if not isinstance(said, Sent)]
        return not waiting

    shop.wait("the repeats to be sent", all_sent)
    broker.close()
