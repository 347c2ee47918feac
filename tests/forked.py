"""Work in a forked child of the test's process."""

import os
import select
import signal
from collections.abc import Callable

import pytest

#: Seconds; a child that hangs is what such tests look for.
DEADLINE = 60.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
knows_of_threads = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_a_child(work: Callable[[], object]) -> str:
    """What the work comes to in a child, as text; fails if it comes to no end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        if not select.select([pipe], [], [], DEADLINE)[0]:
            os.kill(child, signal.SIGKILL)
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hangs"
    return said
