"""Processes of one consumer that meet at one key: on a barrier, and by clocks that disagree."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from outbox.consumer import InProgress, Outcome, Processed
from outbox.identity import fresh_token
from outbox.store.database import Database
from tests.crash.clock import datefudge, shifted
from tests.integration.consumer.shop import keys_done, metadata
from tests.integration.strategies.crash_child import Member, Plan
from tests.integration.strategies.crash_points import Point
from tests.integration.strategies.rig import RIGS, StrategyRig, Surroundings
from tests.unit.consumer.fakes import delivery
from tests.waiting import expect_soon

ROOT: Final = Path(__file__).parents[3]
#: Seconds; more than a machine stands still, and less than an hour.
LEASE: Final = 9.0
KEYS: Final = [f"k{number}" for number in range(5)]
#: ``Inbox`` itself races in ``test_processes.py``.
STRATEGIES: Final = {
    "postgresql": [strategy for strategy in RIGS if strategy not in ("inbox", "row_lock")],
    "mariadb": ["leased", "business", "batch"],
    "sqlite": ["leased", "business", "batch"],
}


@contextmanager
def racing(
    plan: Plan, keys: Sequence[str], what: str = "race", environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.integration.strategies.race_child", what, plan.text(), ",".join(keys)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def prepared(stack: ExitStack, url: str) -> sa.Engine:
    """The tables must be there before several processes come at once."""
    engine = sa.create_engine(url)
    stack.callback(engine.dispose)
    metadata.create_all(engine)
    return engine


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.parametrize(("dialect", "processes"), [("postgresql", 8), ("mariadb", 4), ("sqlite", 2)])
def test_one_key_has_one_effect_in_every_strategy(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: str, dialect: str, processes: int
) -> None:
    with request.getfixturevalue(f"{dialect}_copies")(tmp_path) as url, ExitStack() as stack:
        engine = prepared(stack, url)
        # Given processes with the same consumers
        members = tuple(Member(strategy, strategy, url) for strategy in STRATEGIES[dialect])
        plan = Plan(Point.NONE.value, "", redis_server, fresh_token(), members, lease=60)
        racers = [stack.enter_context(racing(plan, KEYS)) for _ in range(processes)]
        for member in members:
            # When they go for the same keys at the same moment
            for racer in racers:
                assert line(racer) == "ready", member.strategy
            for racer in racers:
                go(racer)
            outcomes = [[line(racer) for _ in KEYS] for racer in racers]
            # Then each key has one owner, the others know it or come again, and there is one effect
            for taken in zip(*outcomes, strict=True):
                counted = Counter(taken)
                assert counted["Processed"] == 1, (member.strategy, taken)
                assert set(counted) <= {"Processed", "Duplicate", "InProgress", "Retry"}
            assert keys_done(engine, member.name) == KEYS, member.strategy


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_an_hour_wrong_changes_no_lease(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: str, hours: int
) -> None:
    library = datefudge()
    if library is None:
        pytest.skip("datefudge is not installed (Debian, Ubuntu: apt-get install datefudge)")
    with request.getfixturevalue("postgresql_copies")(tmp_path) as url, ExitStack() as stack:
        prepared(stack, url)
        # Given an owner of a key whose clock is wrong, under leases that are renewed, in Redis and in the database
        members = tuple(Member(strategy, strategy, url) for strategy in ("redis", "leased", "cached_leased"))
        plan = Plan(Point.NONE.value, "", redis_server, fresh_token(), members, lease=LEASE)
        holder = stack.enter_context(racing(plan, ["k"], "hold", shifted(library, 3600 * hours)))
        assert [line(holder) for _ in members] == ["here"] * len(members)
        # When others come whose clock is right, or wrong in the other direction / Then they find it in progress
        other = stack.enter_context(racing(plan, ["k"], environment=shifted(library, -3600 * hours)))
        for member in members:
            assert line(other) == "ready"
            go(other)
            assert line(other) == "InProgress", member.strategy
        rigs = {member.name: opened(stack, plan, url, member) for member in members}
        for name, rig in rigs.items():
            outcome = taken(rig, name)
            assert isinstance(outcome, InProgress), name
            assert 0 < outcome.remaining <= LEASE, name
        # And when the owner is dead, they have the key once the lease is over, not an hour later
        holder.kill()
        for name, rig in rigs.items():
            expect_soon(lambda rig=rig, name=name: taken(rig, name) == Processed(), f"{name}: succeeded", within=60)  # type: ignore[misc]


def opened(stack: ExitStack, plan: Plan, url: str, member: Member) -> StrategyRig:
    """The same consumer in this process."""
    database = Database(url)
    stack.callback(database.close)
    return RIGS[member.strategy](Surroundings(database.engine, lambda: plan.redis, plan.scope, plan.lease))


def taken(rig: StrategyRig, name: str) -> Outcome:
    """What becomes of the key here."""
    consumer = rig.consumer(name=name)
    outcome = consumer.process(delivery(keys=("k",), body=b"k"))
    consumer.close()
    return outcome
