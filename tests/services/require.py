"""What a test needs: there, or the reason why not."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.services.errors import ServiceMissing
from tests.services.server import Server

Made = TypeVar("Made")


def require(make: Callable[[], Made]) -> Made:
    """What ``make`` returns; where its programs are missing: skip on a laptop, fail with ``CI=true``."""
    try:
        return make()
    except ServiceMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@contextmanager
def shared(variable: str, make: Callable[[], Server]) -> Iterator[str]:
    """URL of the server that the environment variable names, or else of one that is started."""
    url = os.environ.get(variable)
    if url:
        yield url
        return
    with require(make) as server:
        yield server.url
