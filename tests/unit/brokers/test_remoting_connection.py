"""What a connection writes, and when it stops."""

import threading
import time

from outbox.brokers.remoting.connection import Connection
from outbox.clock import monotonic


class Stopping:
    """A stream whose server takes one byte, after which the process is stopped until the time limit is over."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.taken = 0
        self.shut_down = threading.Event()

    def receive(self, space: memoryview) -> int:
        """Nothing, until the end."""
        self.shut_down.wait()
        return 0

    def send(self, content: memoryview, timeout: float) -> int:
        """One byte."""
        self.taken += 1
        while monotonic() < self.until:
            time.sleep(0.01)
        return 1

    def shut(self) -> None:
        """The end."""
        self.shut_down.set()

    def release(self) -> None:
        """Nothing to free."""


def test_nothing_is_written_after_the_time_limit() -> None:
    # Given a batch of which a part is written when its time is over
    until = monotonic() + 0.05
    stream = Stopping(until)
    connection = Connection("broker", stream, lambda *_: None)
    batch = connection.open_exchange(2)
    # When the rest could be written; Then it is not, and what was begun never becomes a request
    connection.send(batch, [b"commit", b"commit"], until)
    assert stream.taken == 1
    assert batch.written == 1
    assert not connection.is_open
    connection.join(10)
