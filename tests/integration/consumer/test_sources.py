"""The whole consumer on the embedded broker and on a real one."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox.brokers.source import Delivery, Source
from outbox.consumer import Message, Permanent, RunnerSettings, run
from outbox.store.database import Database
from tests.contracts.conftest import *  # noqa: F403 -- the rigs' fixtures
from tests.contracts.conftest import TRANSPORTS
from tests.contracts.rig import Rig, message, send_all
from tests.integration.consumer.shop import Step, keys_done, metadata, reasons, record, shop
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
#: Seconds; the machine may stand still for some of them.
INVISIBLE = 6.0
#: What a broker takes to give something out once it is visible again.
REVIVAL = 3.0
#: For everything: the machine may be busy.
DEADLINE = 120.0
SETTINGS = RunnerSettings(invisible=INVISIBLE, retry_delays=(1.0,) * 16, receive_wait=0.2)
#: No delivery comes again by itself, and uses a retry up.
LASTING = replace(SETTINGS, invisible=30.0, retry_delays=(1.0, 1.0))


@dataclass(slots=True)
class Watched:
    """A source that remembers what was asked of it."""

    source: Source
    renewals: Counter[str] = field(default_factory=Counter)
    acknowledged: list[str] = field(default_factory=list)
    buried: list[str] = field(default_factory=list)

    def receive(self, limit: int, wait: float) -> list[Delivery]:
        return self.source.receive(limit, wait)

    def acknowledge(self, delivery: Delivery) -> bool:
        confirmed = self.source.acknowledge(delivery)
        self.acknowledged += [delivery.unique_id] if confirmed else []
        return confirmed

    def later(self, delivery: Delivery, delay: float) -> bool:
        return self.source.later(delivery, delay)

    def renew(self, delivery: Delivery, invisible: float) -> Delivery | None:
        self.renewals[delivery.unique_id] += 1
        return self.source.renew(delivery, invisible)

    def bury(self, delivery: Delivery, reason: str) -> bool:
        confirmed = self.source.bury(delivery, reason)
        self.buried += [delivery.unique_id] if confirmed else []
        return confirmed

    def close(self) -> None:
        self.source.close()


@pytest.fixture(params=[name for name in TRANSPORTS if name != "grpc"])  # type: ignore[no-redef]
def rig(request: pytest.FixtureRequest) -> Rig:
    """The transports that read what any other has sent; a proxy has a test of its own, ``test_proxies.py``."""
    chosen: Rig = request.getfixturevalue(f"{request.param}_rig")
    return chosen


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One database is enough here; the others are tested without a broker."""
    with request.getfixturevalue("postgresql_copies")(None) as url:
        database = Database(url)
        metadata.create_all(database.engine)
        yield database.engine
        database.close()


@contextmanager
def consuming(
    rig: Rig,
    topic: str,
    group: str,
    store: Engine,
    step: Step,
    *,
    orderly: bool = False,
    settings: RunnerSettings = SETTINGS,
) -> Iterator[Watched]:
    """A running consumer, stopped in order at the end."""
    opened = rig.orderly_source if orderly else rig.source
    watched, stop = Watched(opened(topic, group, settings.invisible)), threading.Event()
    inbox = shop(store)
    inbox.handler(topic=topic)(step)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            run(inbox, lambda *_: watched, stop, settings=settings)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield watched
    finally:
        stop.set()
        thread.join(60)
    assert failed == []
    assert not thread.is_alive()


def send(rig: Rig, topic: str, *keys: str) -> list[str]:
    """Sends one message per key; the unique ids."""
    broker = rig.open(rig.fresh_group())
    batch = [message(topic, key=key, body=key.encode(), lane=None) for key in keys]
    send_all(broker, batch)
    return [each.unique_id for each in batch]


def nothing_comes_again(rig: Rig, topic: str, group: str) -> bool:
    """Nothing is left for the group once everything invisible would be visible again."""
    again = rig.source(topic, group, INVISIBLE)
    received = [again.receive(32, wait) for wait in (INVISIBLE, REVIVAL)]
    return received == [[], []]


def test_what_was_sent_took_effect_once_or_is_parked(rig: Rig, topic: str, group: str, store: Engine) -> None:
    # Given messages, some sent twice, some that fail at first, one that can never succeed
    flaky = {f"k{number}" for number in range(0, 30, 10)}
    lock = threading.Lock()

    def step(received: Message, session: Session) -> None:
        if received.key == "never":
            raise Permanent("no such order")
        record(received, session)
        with lock:
            fails = received.key in flaky
            flaky.discard(received.key)
        if fails:
            raise ValueError("after the effect")

    keys = [f"k{number}" for number in range(30)]
    sent = send(rig, topic, *keys, *keys[:10], "never")
    # When they are consumed
    with consuming(rig, topic, group, store, step) as watched:
        expect_soon(lambda: set(watched.acknowledged) == set(sent), "everything acknowledged", within=DEADLINE)
    # Then each key took effect once, the hopeless one is parked, and the broker has nothing more for the group
    assert keys_done(store) == sorted(keys)
    assert reasons(store) == ["Permanent: no such order"]
    assert nothing_comes_again(rig, topic, group)


def test_a_long_handler_keeps_its_message(rig: Rig, topic: str, group: str, store: Engine) -> None:
    # Given a handler that outlasts the invisible time
    calls: list[int] = []
    done = threading.Event()

    def step(received: Message, session: Session) -> None:
        calls.append(received.attempt)
        done.wait(DEADLINE)
        record(received, session)

    (sent,) = send(rig, topic, "k")
    with consuming(rig, topic, group, store, step) as watched:
        # When it has been renewed past that time
        expect_soon(lambda: watched.renewals[sent] >= 4, "four renewals", within=DEADLINE)
        done.set()
        expect_soon(lambda: watched.acknowledged == [sent], "acknowledged under the latest receipt", within=DEADLINE)
    # Then nobody else had it
    assert calls == [1]
    assert keys_done(store) == ["k"]
    assert nothing_comes_again(rig, topic, group)


def test_the_last_retry_ends_among_the_dead_letters(rig: Rig, topic: str, group: str, store: Engine) -> None:
    # Given a handler that always fails
    attempts: list[int] = []

    def step(received: Message, _: Session) -> None:
        attempts.append(received.attempt)
        raise ValueError("always")

    (sent,) = send(rig, topic, "k")
    # When its retries are used up
    with consuming(rig, topic, group, store, step, settings=LASTING) as watched:
        expect_soon(lambda: bool(watched.buried), "buried", within=DEADLINE)
    # Then it was tried as often as the schedule says, lies in the dead-letter topic, and comes no more
    assert attempts == [1, 2, 3]
    assert watched.buried == [sent]
    expect_soon(lambda: len(rig.visible(f"%DLQ%{group}")) == 1, "one dead letter", within=DEADLINE)
    assert nothing_comes_again(rig, topic, group)


def test_members_that_come_and_go_share_the_work(rig: Rig, topic: str, group: str, store: Engine) -> None:
    # Given many messages, and a member that stops while it holds some of them
    keys = [f"k{number:02}" for number in range(40)]
    sent = send(rig, topic, *keys)
    with consuming(rig, topic, group, store, record) as first:
        expect_soon(lambda: bool(first.acknowledged), "the first member works", within=DEADLINE)
    # When two others take over
    with (
        consuming(rig, topic, group, store, record) as second,
        consuming(rig, topic, group, store, record) as third,
    ):
        expect_soon(
            lambda: set(first.acknowledged + second.acknowledged + third.acknowledged) == set(sent),
            "everything acknowledged",
            within=DEADLINE,
        )
    # Then each key took effect once
    assert keys_done(store) == keys
