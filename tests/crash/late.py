"""``python -m tests.crash.late relay …``: an ``outbox`` process that stops itself (SIGSTOP) between its last look at
the clock and the write of a COMMIT, once; when it is continued, it writes.

No point of ``outbox.faults`` lies there: a COMMIT that late is outside what the toolkit can prevent.
"""

import os
import signal
from collections.abc import Callable
from itertools import count

from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.streams import SocketStream
from outbox.cli.app import main

#: Both are in the header of a request that commits (``MessageSysFlag``: TRANSACTION_COMMIT_TYPE).
_MARKS = (f'"code":{Request.END_TRANSACTION:d},'.encode(), b'"commitOrRollback":"8"')

Send = Callable[[SocketStream, memoryview, float], int]


def pausing(write: Send) -> Send:
    """``SocketStream.send`` that stops the process before the first bytes that hold a COMMIT."""
    commits = count(1)

    def send(stream: SocketStream, content: memoryview, timeout: float) -> int:
        """As ``write``."""
        held = bytes(content)
        if all(mark in held for mark in _MARKS) and next(commits) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return write(stream, content, timeout)

    return send


if __name__ == "__main__":
    SocketStream.send = pausing(SocketStream.send)  # type: ignore[method-assign,assignment]
    main()
