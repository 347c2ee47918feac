"""Free loopback ports."""

import os
import random
import socket
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final

#: Below the ranges that systems hand out to outgoing connections (IANA 49152-65535, Linux 32768-60999), so that a
#: port stays free while its server is down between a crash and a restart. A broker takes the port that is two below its
#: own and the one above as well.
_CHOICE: Final = range(20_000, 32_000, 4)


def free_port() -> int:
    """A TCP port that nobody listens on, and that is given to nobody else for long: neither by this process nor by
    another one of the same test run. A stranger may still be faster, so starting tries again.
    """
    return next(port for port in _PORTS if is_free(port))


def is_free(port: int) -> bool:
    """Whether nobody listens on this port of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def ports_of(worker: int, workers: int) -> Sequence[int]:
    """The share of a test process among so many; number 0 is who is none of them, such as the one that started them."""
    return _CHOICE[worker :: workers + 1]


def _own_ports() -> Iterator[int]:
    """In an order of their own; pytest-xdist tells its processes who they are (``gw0``), and what they start."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "")[2:]
    share = list(ports_of(int(number) + 1 if number else 0, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))))
    random.SystemRandom().shuffle(share)
    return cycle(share)


_PORTS: Final = _own_ports()
