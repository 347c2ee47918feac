"""Fixtures of the transports' unit tests."""

from collections.abc import Iterator

import pytest

from tests.unit.brokers.remoting_opened import Open


@pytest.fixture
def opened() -> Iterator[Open]:
    everything = Open()
    yield everything
    everything.close()
