"""An orderly stop by signal, whatever the main thread is doing when it comes."""

import os
import signal
import subprocess
import sys
import threading

from outbox.cli.stopping import stopped_by_signals


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
    # Then it is as before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_drain_that_does_not_end_is_ended() -> None:
    # Given a daemon that goes on whatever it is told
    program = """
import os, signal, threading
from outbox.cli.stopping import stopped_by_signals
with stopped_by_signals(lambda: None, drain_timeout=0.2):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
"""
    # When it is asked to stop; Then it ends once the drain time-out is over, and says so
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 1
    assert "leases cover what was under way" in ended.stderr
