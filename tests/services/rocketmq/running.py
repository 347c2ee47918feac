"""The cluster that tests share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.services.require import require
from tests.services.rocketmq.cluster import RocketMQ

#: Names the name server (``host:port``) of a cluster that runs already.
NAMED: Final = "OUTBOX_TEST_ROCKETMQ"


@contextmanager
def running_cluster() -> Iterator[str]:
    """Name server of the cluster that ``OUTBOX_TEST_ROCKETMQ`` names, or else of one that is started.

    Without Java or Maven: skips on a laptop, fails with ``CI=true``.
    """
    named = os.environ.get(NAMED)
    if named:
        yield named
        return
    with require(RocketMQ) as cluster:
        yield cluster.namesrv
