"""Processes of one consumer on a barrier, all with the same keys."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from outbox.identity import fresh_token
from tests.integration.consumer.shop import keys_done, metadata
from tests.integration.strategies.crash_child import Member, Plan
from tests.integration.strategies.crash_points import Point
from tests.integration.strategies.rig import RIGS

ROOT: Final = Path(__file__).parents[3]
KEYS: Final = [f"k{number}" for number in range(5)]
#: ``Inbox`` itself races in ``test_processes.py``.
STRATEGIES: Final = {
    "postgresql": [strategy for strategy in RIGS if strategy not in ("inbox", "row_lock")],
    "mariadb": ["leased", "business", "batch"],
    "sqlite": ["leased", "business", "batch"],
}


@contextmanager
def racing(plan: Plan) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.integration.strategies.race_child", plan.text(), ",".join(KEYS)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("dialect", "processes"), [("postgresql", 8), ("mariadb", 4), ("sqlite", 2)])
def test_one_key_has_one_effect_in_every_strategy(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: str, dialect: str, processes: int
) -> None:
    with request.getfixturevalue(f"{dialect}_copies")(tmp_path) as url, ExitStack() as stack:
        engine = sa.create_engine(url)
        stack.callback(engine.dispose)
        metadata.create_all(engine)
        # Given processes with the same consumers
        members = tuple(Member(strategy, strategy, url) for strategy in STRATEGIES[dialect])
        plan = Plan(Point.NONE.value, "", redis_server, fresh_token(), members)
        racers = [stack.enter_context(racing(plan)) for _ in range(processes)]
        for member in members:
            # When they go for the same keys at the same moment
            for racer in racers:
                assert line(racer) == "ready", member.strategy
            for racer in racers:
                assert racer.stdin
                racer.stdin.write("go\n")
                racer.stdin.flush()
            outcomes = [[line(racer) for _ in KEYS] for racer in racers]
            # Then each key has one owner, the others know it or come again, and there is one effect
            for taken in zip(*outcomes, strict=True):
                counted = Counter(taken)
                assert counted["Processed"] == 1, (member.strategy, taken)
                assert set(counted) <= {"Processed", "Duplicate", "InProgress", "Retry"}
            assert keys_done(engine, member.name) == KEYS, member.strategy
