"""An orderly stop by signal, whatever the main thread is doing when it comes."""

import os
import signal
import threading

from outbox.cli.daemons import stopped_by_signals


def test_a_stop_may_need_what_the_main_thread_holds() -> None:
    # Given a daemon whose stop takes a lock, as waking a sleeping loop does
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        if lock.acquire(timeout=10):
            stopped.set()

    with stopped_by_signals(stop):
        # When the signal comes while the main thread holds that lock
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
        # Then it stops all the same
        assert stopped.wait(5)


def test_signals_are_handed_back() -> None:
    # Given what the process did about signals
    before = signal.getsignal(signal.SIGTERM)
    # When a daemon has run and was stopped
    stopped = threading.Event()
    with stopped_by_signals(stopped.set):
        assert signal.getsignal(signal.SIGTERM) != before
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(10)
    # Then it is as before, and no thread is left waiting for a signal
    assert signal.getsignal(signal.SIGTERM) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "outbox-stop"]
