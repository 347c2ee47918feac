"""How a daemon is told to end."""

import atexit
import gc
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Final

log = logging.getLogger(__name__)

#: Seconds for a last line in the log.
_SAYING: Final = 1.0


@contextmanager
def stopped_by_signals(stop: Callable[[], object], drain_timeout: float = math.inf) -> Iterator[None]:
    """SIGTERM and SIGINT ask for an orderly stop; the second one ends the process at once.

    So does the end of ``drain_timeout`` seconds after the first: a database that hangs must not hold the process up.
    Whatever is under way then is left to leases and check-back, as after a crash.

    ``stop`` is called in a thread of its own: it takes locks, and a handler that waits for a lock which the interrupted
    main thread holds would wait for ever. Putting on a ``SimpleQueue`` is safe in a handler.
    """
    atexit.register(gc.freeze)  # else the interpreter looks for garbage to the last: a second of CPU time, for nothing
    asked: SimpleQueue[bool] = SimpleQueue()
    over = threading.Event()
    stopper = threading.Thread(target=_stop_when_asked, args=(asked, stop, over, drain_timeout), daemon=True)

    def on_signal(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + number))
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + number))
        asked.put(True)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    stopper.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        over.set()
        asked.put(False)
        stopper.join()


def _stop_when_asked(
    asked: "SimpleQueue[bool]", stop: Callable[[], object], over: threading.Event, drain_timeout: float
) -> None:
    if not asked.get():
        return
    in_a_thread(stop)
    if not over.wait(min(drain_timeout, threading.TIMEOUT_MAX)):
        text = "not done %.0f s after the signal to stop: ending; leases cover what was under way"
        if saying := in_a_thread(partial(log.error, text, drain_timeout)):
            saying.join(_SAYING)
        os._exit(1)


def in_a_thread(work: Callable[[], object]) -> threading.Thread | None:
    """Begins the work in a thread of its own, so that what hangs (a log whose reader has stopped) or fails does not
    keep the process from its end. None: the system has no thread left, and the work is done, here."""
    working = threading.Thread(target=work, daemon=True)
    try:
        working.start()
    except RuntimeError:
        work()
        return None
    return working
