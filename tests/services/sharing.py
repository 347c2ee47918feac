"""Runs a command whose processes share one RocketMQ cluster: ``python -m tests.services.sharing COMMAND...``.

Test processes that each start one of their own spend as much of two cores on idle brokers as on a tenth of the tests.
Where RocketMQ is missing the command runs all the same: its tests say so.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from tests.services.errors import ServiceMissing
from tests.services.rocketmq import NAMED, RocketMQ


def run(command: Sequence[str]) -> int:
    """The command's exit code; the cluster ends with it."""
    with ExitStack() as cluster:
        environment = dict(os.environ)
        if NAMED not in environment:
            try:
                environment[NAMED] = cluster.enter_context(RocketMQ()).namesrv
            except ServiceMissing as missing:
                print(missing, file=sys.stderr)
        return _result(subprocess.Popen(command, env=environment))


def _result(child: "subprocess.Popen[bytes]") -> int:
    """An interrupt at the terminal reaches the child by itself; what is sent to this process is passed on."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child.wait()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
