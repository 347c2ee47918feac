"""Forks, signals, and the end of a transport."""

import os
import signal
import threading
import time

import pytest

from outbox.brokers.base import (
    Stored,
)
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.frames import Frame
from tests.unit.brokers.remoting_opened import GROUP, TOPIC, Open, message, on_send
from tests.unit.brokers.remoting_server import healthy, stored
from tests.waiting import expect_soon


def test_a_forked_child_has_connections_of_its_own(opened: Open) -> None:
    # Given a transport that is in use
    server, broker = opened(healthy)
    assert isinstance(broker.prepare([message()], timeout=60)[0], Stored)
    # When a child of this process uses it as well
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if isinstance(broker.prepare([message()], timeout=60)[0], Stored) else 2
        finally:
            os._exit(code)
    expect_soon(lambda: server.connections == 2, "the child connects")
    _, status = os.waitpid(child, 0)
    # Then it is served on a second connection, and the parent's goes on
    assert os.waitstatus_to_exitcode(status) == 0
    assert isinstance(broker.prepare([message()], timeout=60)[0], Stored)
    assert server.connections == 2


def test_close_ends_every_thread(opened: Open) -> None:
    # Given a transport with a listener
    _, broker = opened(healthy)
    before = set(threading.enumerate())
    broker.listen([TOPIC], lambda check, answer: None)
    expect_soon(broker.checks_ready, "the listener is registered")
    # When it is closed; Then nothing of it runs on
    broker.close()
    ours = {"remoting", "check"}
    expect_soon(
        lambda: not any(t.name.split("-")[0] in ours for t in set(threading.enumerate()) - before),
        "its threads have ended",
    )
    assert not broker.checks_ready()


def test_a_signal_does_not_disturb_a_call(opened: Open) -> None:
    # Given a handler for a signal, as daemons have, and a slow broker
    fired: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: fired.append(number))

    def slow(request: Frame) -> bytes:
        time.sleep(0.2)
        return stored(request)

    _, broker = opened(on_send(slow))
    try:
        # When the signal comes while a message is in flight; Then the message is stored all the same
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert isinstance(broker.prepare([message()], timeout=60)[0], Stored)
        assert fired == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("wrong", ["", ";", "host", ":9876", "host:port"])
def test_name_servers_are_checked(wrong: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        RemotingBroker(wrong, GROUP)
