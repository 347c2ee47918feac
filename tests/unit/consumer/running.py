"""A runner in a thread, for tests, and the clock that it goes by."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outbox.consumer import Runner, RunnerSettings
from tests.unit.consumer.fakes import DEADLINE, FakeSource, FakeStrategy


class Clock:
    """The clock of deliveries, put forward by hand: a machine that stands still lets none lapse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in ("outbox.consumer.held", "tests.unit.consumer.fakes"):
            monkeypatch.setattr(f"{module}.monotonic", lambda: self.now)


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
