"""Work that is done once, whoever of two threads comes to it first."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future


class Once:
    """A piece of work that is offered to a pool and may be taken back; safe to use from several threads.

    ``ThreadPoolExecutor.submit`` queues the work before it starts a thread for it. Where the system has no thread left
    it raises, and yet a thread that is there already may do the work later. A caller who took the exception for "not
    done", and did it as well, would send a message, or a COMMIT, twice.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._untaken = threading.Lock()
        self._done: Future[None] = Future()

    def offer(self, pool: Executor) -> None:
        """Has a thread of the pool do it; ``RuntimeError`` where none can be started, or the pool is closed."""
        pool.submit(self._run)

    def take(self) -> bool:
        """Whether the work is the caller's from now on; if not, a thread of the pool has begun it."""
        return self._untaken.acquire(blocking=False)

    def finish(self) -> None:
        """Does it here, unless a thread has begun it, and returns once it is done; raises what the work raised."""
        self._run()
        self._done.result()

    def _run(self) -> None:
        if not self.take():
            return
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 -- whoever waits for it gets it
            self._done.set_exception(error)
        else:
            self._done.set_result(None)
