"""Free loopback ports."""

import random
import socket

#: Below the ranges that systems hand out to outgoing connections (IANA 49152-65535, Linux 32768-60999), so that a
#: port stays free while its server is down between a crash and a restart.
_CHOICE = range(20_000, 32_000)


def free_port() -> int:
    """A TCP port that nobody listens on; another program may still be faster, so starting tries again."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_CHOICE)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Whether nobody listens on this port of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
