"""The transports that the contract suite runs on: see ``rig.py`` for how to add one."""

import pytest

from tests.contracts.embedded_rig import embedded_rig  # noqa: F401 -- a fixture
from tests.contracts.grpc_rig import grpc_rig, grpc_topics  # noqa: F401 -- fixtures
from tests.contracts.native_rig import native_rig  # noqa: F401 -- a fixture
from tests.contracts.remoting_rig import remoting_rig, remoting_topics  # noqa: F401 -- fixtures
from tests.contracts.rig import Rig

#: Each name has a fixture ``<name>_rig``.
TRANSPORTS = ("embedded", "remoting", "native", "grpc")


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Every broker of the suite is there, or nowhere."""


@pytest.fixture(params=TRANSPORTS)
def rig(request: pytest.FixtureRequest) -> Rig:
    """One transport after another."""
    chosen: Rig = request.getfixturevalue(f"{request.param}_rig")
    return chosen


@pytest.fixture
def topic(rig: Rig) -> str:
    """A topic of the test's own."""
    return rig.fresh_topic()


@pytest.fixture
def plain_topic(rig: Rig) -> str:
    """A topic of the test's own for plain messages."""
    return rig.fresh_plain_topic()


@pytest.fixture
def group(rig: Rig) -> str:
    """A group name of the test's own."""
    return rig.fresh_group()
