"""A few threads that do what comes in, and a bounded queue before them."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

THREADS: Final = 4
#: What waits for a thread; the broker asks again about checks that find no place.
WAITING: Final = 1000


class Workers:
    """Daemon threads: a handler that hangs does not keep the process from ending."""

    def __init__(self) -> None:
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._stopped = False
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"grpc-check-{number}", daemon=True).start()

    def put(self, work: Callable[[], None], what: str) -> None:
        """Takes work in without waiting; one piece too many is dropped."""
        try:
            self._work.put_nowait(work)
        except queue.Full:
            log.warning("dropped %s, %d wait already; the broker asks again", what, WAITING)

    def stop(self) -> None:
        """Lets the threads end; what waits is dropped, a running handler ends by itself."""
        self._stopped = True
        for _ in range(THREADS):
            try:
                self._work.put_nowait(None)
            except queue.Full:
                return  # the threads look at the flag after each piece

    def _run(self) -> None:
        while not self._stopped:
            work = self._work.get()
            if work is None or self._stopped:
                return
            try:
                work()
            except Exception:
                log.exception("a check failed: it is left open, and the broker asks again")
