"""Fetches what has to come from a registry before a test's clock runs: ``python -m tests.services.fetch``."""

import sys
from collections.abc import Callable
from functools import partial

from tests.services.errors import ServiceFailed, ServiceMissing
from tests.services.librocketmq import librocketmq
from tests.services.rocketmq.cluster import DEFAULT_VERSION
from tests.services.rocketmq.jars import OTHER_VERSIONS, jars


def fetch() -> int:
    """Exit code: 1 where fetching failed; a missing program is only said, since its tests say it again."""
    wanted: dict[str, Callable[[], object]] = {
        "a real broker": lambda: jars(DEFAULT_VERSION),
        "the native client": librocketmq,
        "a RocketMQ proxy": partial(jars, DEFAULT_VERSION, "rocketmq-proxy"),
        **{f"RocketMQ {version}": partial(jars, version) for version in OTHER_VERSIONS},
    }
    for what, get in wanted.items():
        try:
            get()
        except ServiceMissing as missing:
            print(f"{missing}; tests on {what} are skipped", file=sys.stderr)
        except ServiceFailed as failed:
            print(failed, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(fetch())
