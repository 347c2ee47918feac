"""A consumer process that tests start, synchronise and kill: ``python -m tests.integration.consumer.child …``.

``child.py race URL KEYS FAILS`` waits for a line, then processes the keys in order and prints each outcome; the first
FAILS handler calls in this process fail after their effect. ``child.py crash URL POINT`` processes the key "k" and
stops at POINT, saying so, until it is killed. ``child.py lease URL SECONDS`` claims the key "k" under a lease and stops
inside its handler. ``child.py hold URL BROKER_URL GROUP TOPIC`` consumes the topic and stops in every handler.
``child.py lanes URL BROKER_URL GROUP TOPIC SEED`` says so, consumes it as an orderly group, and fails at random.
"""

import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from outbox.consumer import Inbox, LeasedInbox, Message, Runner, RunnerSettings, claims
from outbox.settings import load
from outbox.store.database import Database
from outbox.wiring import open_source
from tests.integration.consumer.shop import record, shop
from tests.unit.consumer.fakes import FakeSource, delivery

#: Seconds for which ``hold`` keeps a message invisible between two renewals.
HELD = 3.0
#: Retries of ``lanes``: one that waits for a process that stands still uses them up, and none may be its last.
MANY = 10_000


def say(text: str) -> None:
    """One line, in one write: several threads say something, and print() writes the end of a line by itself."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def stop_here() -> None:
    """Never returns; the test kills the process."""
    say("here")
    while True:
        signal.pause()


def race(url: str, keys: str, fails: str) -> None:
    failures = iter(range(int(fails)))

    def step(message: Message, session: Session) -> None:
        record(message, session)
        if next(failures, None) is not None:
            raise ValueError("after the effect")

    inbox = shop(url, step, lock_timeout=20)
    say("ready")
    sys.stdin.readline()
    for key in keys.split(","):
        say(type(inbox.process(delivery(keys=(key,), body=key.encode()))).__name__)
    inbox.close()


class Stopping(FakeSource):
    """Stops before it acknowledges."""

    def acknowledge(self, delivery: object) -> bool:
        stop_here()
        return False


def crash(url: str, point: str) -> None:
    database = Database(url, statement_timeout=20)

    def step(message: Message, session: Session) -> None:
        if point == "inside the handler":
            stop_here()
        record(message, session)
        if point == "after the last write":
            stop_here()

    inbox: Inbox = shop(database.engine, step, row_lock=point == "after the reservation")
    if point == "after the claim":
        claims.insert = _stopping(claims.insert)
    if point == "after the reservation":
        event.listen(database.engine, "commit", lambda _: event.listen(database.engine, "begin", lambda _: stop_here()))
    source = Stopping()
    source.put(delivery(keys=("k",), body=b"same"))
    if point == "after reception":
        source.receive(1, 1.0)
        stop_here()
    Runner(source, inbox, RunnerSettings(threads=1)).run(threading.Event())


def lease(url: str, seconds: str) -> None:
    inbox = LeasedInbox(url, consumer="stock", lease=float(seconds))
    inbox.handler(topic="payments")(lambda _message, _lease: stop_here())
    inbox.process(delivery(keys=("k",), body=b"same"))


def hold(url: str, broker_url: str, group: str, topic: str) -> None:
    """Prints the key of each message that it holds."""
    inbox = Inbox(url, consumer="stock")

    @inbox.handler(topic=topic)
    def step(message: Message, _: Session) -> None:
        say(message.key)
        signal.pause()

    settings = load(broker_url=broker_url, origin="orders", invisible=HELD)
    source = open_source(settings, [topic], group)
    Runner(source, inbox, RunnerSettings(threads=2, invisible=HELD, receive_wait=0.2)).run(threading.Event())


def lanes(url: str, broker_url: str, group: str, topic: str, seed: str) -> None:
    """A fifth of the handlers fail, half of these after their effect."""
    inbox, dice = Inbox(url, consumer="stock"), random.Random(seed)

    @inbox.handler(topic=topic)
    def step(message: Message, session: Session) -> None:
        thrown = dice.random()
        if thrown < 0.1:
            raise ValueError("before the effect")
        record(message, session)
        if thrown < 0.2:
            raise ValueError("after the effect")

    source = open_source(load(broker_url=broker_url, origin="orders", invisible=HELD, orderly=True), [topic], group)
    settings = RunnerSettings(invisible=HELD, receive_wait=0.2, retry_delays=(0.1,) * MANY)
    say("ready")
    Runner(source, inbox, settings).run(threading.Event())


def _stopping(step: Callable[..., object]) -> Callable[..., Any]:
    """The step, and not a step further."""

    def taken(*arguments: object) -> None:
        step(*arguments)
        stop_here()

    return taken


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {
        "race": race,
        "crash": crash,
        "lease": lease,
        "hold": hold,
        "lanes": lanes,
    }
    commands[sys.argv[1]](*sys.argv[2:])
