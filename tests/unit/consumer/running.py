"""A runner in a thread, for tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from outbox.consumer import Runner, RunnerSettings
from tests.unit.consumer.fakes import DEADLINE, FakeSource, FakeStrategy


@contextmanager
def running(source: FakeSource, strategy: FakeStrategy, settings: RunnerSettings) -> Iterator[threading.Event]:
    """Stopped and drained at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=Runner(source, strategy, settings).run, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()
