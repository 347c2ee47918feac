"""An orderly stop by signal, whatever the main thread is doing when it comes."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from outbox.cli.stopping import stopped_by_signals


def test_a_stop_may_need_what_the_main_thread_holds() -> None:
    # Given a daemon whose stop takes a lock, as waking a sleeping loop does
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        if lock.acquire(timeout=60):
            stopped.set()

    with stopped_by_signals(stop):
        # When the signal comes while the main thread holds that lock
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
        # Then it stops all the same
        assert stopped.wait(60)


def test_signals_are_handed_back() -> None:
    # Given what the process did about signals
    before = signal.getsignal(signal.SIGTERM)
    # When a daemon has run and was stopped
    stopped = threading.Event()
    with stopped_by_signals(stopped.set):
        assert signal.getsignal(signal.SIGTERM) != before
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(60)
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


@pytest.mark.parametrize("stop", ["lambda: None", "fails", "log_something"])
def test_a_log_that_nobody_reads_does_not_hold_up_the_end(stop: str) -> None:
    # Given a daemon whose log is a pipe that is full, and is not read any more
    program = f"""
import logging, os, signal, sys, threading
from outbox.cli.stopping import stopped_by_signals
def fails(): raise OSError("a stop that fails")
def log_something(): logging.error("stopping")
os.set_blocking(2, False)
try:
    while os.write(2, b"x" * 4096): pass
except BlockingIOError: pass
os.set_blocking(2, True)
with stopped_by_signals({stop}, drain_timeout=0.2):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
"""
    # When it is asked to stop; Then it ends all the same
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as daemon:
        try:
            assert daemon.wait(50) == 1
        finally:
            daemon.kill()


def test_a_process_without_threads_left_is_told_to_stop() -> None:
    # Given a process that can start no thread any more
    program = """
import os, signal, sys, threading
from outbox.cli.stopping import stopped_by_signals
stopped = threading.Event()
with stopped_by_signals(stopped.set, drain_timeout=30):
    threading.stack_size(2**46)
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(0 if stopped.wait(20) else 3)
"""
    # When it is asked to stop; Then it hears of it
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stderr
