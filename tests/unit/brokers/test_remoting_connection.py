"""What a connection writes, and when it stops."""

import threading

import pytest

from outbox.brokers.remoting import connection as tested
from outbox.brokers.remoting.connection import Connection

UNTIL = 100.0


class Stopping:
    """A stream whose server takes one byte, after which the process is stopped until the time limit is over."""

    def __init__(self) -> None:
        self.now = UNTIL - 1
        self.taken = 0
        self.shut_down = threading.Event()

    def receive(self, space: memoryview) -> int:
        """Nothing, until the end."""
        self.shut_down.wait()
        return 0

    def send(self, content: memoryview, timeout: float) -> int:
        """One byte."""
        self.taken += 1
        self.now = UNTIL
        return 1

    def shut(self) -> None:
        """The end."""
        self.shut_down.set()

    def release(self) -> None:
        """Nothing to free."""


def test_nothing_is_written_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a batch of which a part is written when its time is over
    stream = Stopping()
    monkeypatch.setattr(tested, "monotonic", lambda: stream.now)
    connection = Connection("broker", stream, lambda *_: None)
    batch = connection.open_exchange(2)
    # When the rest could be written; Then it is not, and what was begun never becomes a request
    connection.send(batch, [b"commit", b"commit"], UNTIL)
    assert stream.taken == 1
    assert batch.written == 1
    assert not connection.is_open
    connection.join(60)
