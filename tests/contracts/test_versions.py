"""The contract of the remoting transport on other releases of RocketMQ: the suite beside this file, on their brokers.

One test for each release runs the suite in processes of its own, several at once since it mostly waits for checks: so
each release has one broker, whatever order the tests run in, and it is gone as soon as its tests are over. 5.5.0 keeps
a core busy as long as it runs.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.services.require import require
from tests.services.rocketmq import NAMED, RocketMQ
from tests.services.rocketmq.jars import OTHER_VERSIONS

_HERE: Final = Path(__file__).parent
#: Halves, endings, checks, plain sends and look-ups.
_SUITE: Final = tuple(str(_HERE / f"test_broker_{part}.py") for part in ("checks", "endings", "halves", "sends"))
#: Consumers, in ``make conformance``: 5.x has POP, and ``test_source.py`` its 5.4.0; 4.9 has the native push consumer.
_CONSUMERS: Final = (
    str(_HERE / "test_source.py"),
    str(_HERE.parent / "integration" / "test_native_consumer.py"),
)
_ORDERLY: Final = str(_HERE / "test_orderly_source.py")
_PUSHED: Final = "(remoting and not test_source) or (native and test_source) or test_native_consumer"
#: As if everything lay on disk: a client that asks where a new group begins is then told "at the end".
_ON_DISK: Final = MappingProxyType({"accessMessageInMemoryMaxRatio": 0})
_PROCESSES: Final = "4"
#: 4.9 has levels of delay only.
_LEVELS_ONLY: Final = " and not at_a_moment"


@pytest.mark.timeout(1800)  # a suite, each test of which has a guard of its own
@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_the_contract_holds_on(version: str) -> None:
    # Given a broker of this release; When the suite runs on it; Then it passes, and is not empty
    consumers = "OUTBOX_TEST_LONG" in os.environ
    pushed = consumers and version.startswith("4.")
    popped = consumers and not pushed
    command = [sys.executable, "-m", "pytest", "-q", "-n", _PROCESSES, "-p", "no:cacheprovider"]
    which = f"({_PUSHED if pushed else 'remoting'})" + (_LEVELS_ONLY if version.startswith("4.") else "")
    command += ["-k", which, *_SUITE, *(_CONSUMERS if pushed else ()), *([_ORDERLY] if popped else ())]
    with require(lambda: RocketMQ(version=version, settings=_ON_DISK if pushed else None)) as cluster:
        named = {**_of_our_own(), NAMED: cluster.namesrv}
        ran = subprocess.run(command, env=named, cwd=_HERE.parents[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _of_our_own() -> dict[str, str]:
    """This process's environment without what the run that it belongs to has put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
