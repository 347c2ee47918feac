"""Real processes of every strategy, killed with SIGKILL at each step, restarted, their messages delivered again.

What comes out is what ``docs/consumer-guarantees.md`` says, row by row. To have the document rewritten:
``OUTBOX_REWRITE_DOCS=1 python -m pytest tests/integration/strategies/test_crash_points.py``.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from outbox.brokers.base import Outgoing
from outbox.brokers.embedded import EmbeddedBroker, EmbeddedInspector
from outbox.identity import fresh_token, unique_ids
from tests.integration.consumer.shop import keys_done, metadata
from tests.integration.strategies.crash_child import Member, Plan
from tests.integration.strategies.crash_points import Point
from tests.integration.strategies.crash_tables import POINTS, Measured, compare
from tests.integration.strategies.rig import RIGS

ROOT: Final = Path(__file__).parents[3]
#: For each wait: a busy machine has taken two minutes for all of a point.
DEADLINE: Final = 240.0
#: Where databases lock, or lose a connection, in their own way; the document has one row for all of them.
ELSEWHERE: Final = ("inbox", "row_lock", "leased", "business", "batch")


class Process:
    """A child, and what it has said so far."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self._log = log
        self._complaints = log.with_suffix(".err")
        command = [sys.executable, "-m", "tests.integration.strategies.crash_child", plan.text()]
        with log.open("wb") as out, self._complaints.open("wb") as err:
            self._popen = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=err)

    def go(self) -> None:
        """Has it begin once it is ready."""
        self.wait(lambda: "ready" in self.said(), "ready")
        self._write(b"go\n")

    def said(self) -> list[str]:
        """Whole lines."""
        return self._log.read_text(errors="replace").split("\n")[:-1]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds; fails with the child's words."""
        end = time.monotonic() + DEADLINE
        while not condition():
            is_over = time.monotonic() > end or self._popen.poll() is not None
            assert not is_over, f"{what}: not so\n{self._log.read_text()}\n{self._complaints.read_text()[-4000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        self._popen.kill()
        self._popen.wait()
        if self._popen.stdin:
            self._popen.stdin.close()

    def _write(self, line: bytes) -> None:
        assert self._popen.stdin
        self._popen.stdin.write(line)
        self._popen.stdin.flush()


@pytest.fixture
def members(request: pytest.FixtureRequest, tmp_path: Path, point: Point) -> Iterator[list[Member]]:
    """Every strategy on PostgreSQL, those whose locks matter also on MariaDB and SQLite; SQLite has a file for each."""
    copies = {name: request.getfixturevalue(f"{name}_copies") for name in ("postgresql", "mariadb", "sqlite")}
    with ExitStack() as stack:
        shared = {name: stack.enter_context(copies[name](tmp_path)) for name in ("postgresql", "mariadb")}
        members = [Member(f"{strategy}.postgresql", strategy, shared["postgresql"]) for strategy in RIGS]
        members += [Member(f"{strategy}.mariadb", strategy, shared["mariadb"]) for strategy in ELSEWHERE]
        # An answer of SQLite takes no way on which it could be lost.
        for strategy in ELSEWHERE if point is not Point.UNANSWERED else ():
            folder = tmp_path / strategy
            folder.mkdir()
            members.append(Member(f"{strategy}.sqlite", strategy, stack.enter_context(copies["sqlite"](folder))))
        for url in {member.database for member in members}:
            with opened(url) as engine:
                metadata.create_all(engine)
        yield members


@contextmanager
def opened(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def send(broker: str) -> None:
    """One message, which each group receives."""
    embedded = EmbeddedBroker(broker, "producer")
    embedded.send([Outgoing("payments", b"same", unique_ids.fresh(), "k")], timeout=60)
    embedded.close()


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name.lower())
def test_a_crash_at_any_point_leaves_what_the_document_says(
    point: Point, members: list[Member], redis_server: str, tmp_path: Path
) -> None:
    # Given a message, a process of consumers that will be struck at the point, and one that will come after it
    plan = Plan(point.value, str(tmp_path / "broker.db"), redis_server, fresh_token(), tuple(members))
    send(plan.broker)
    names = [member.name for member in members]
    first = Process(plan, tmp_path / "first.out")
    second = Process(replace(plan, point=Point.NONE.value), tmp_path / "second.out")
    try:
        # When every consumer was struck, and the process killed where the point says so, and restarted
        first.go()
        first.wait(lambda: {f"struck {name}" for name in names} <= set(first.said()), "all struck")
        last = first
        if point.kills:
            first.kill()
            second.go()
            last = second
        with EmbeddedInspector(plan.broker) as inspector:
            last.wait(lambda: not any(inspector.backlog(name, "payments") for name in names), "all acknowledged")
    finally:
        first.kill()
        second.kill()
    # Then each strategy has done on each database what the document says
    found = {member: measured(member, first.said(), second.said()) for member in members}
    by_strategy: dict[str, set[Measured]] = {}
    for member, each in found.items():
        by_strategy.setdefault(member.strategy, set()).add(each)
    assert {strategy: each for strategy, each in by_strategy.items() if len(each) > 1} == {}
    compare(point, {strategy: each.pop() for strategy, each in by_strategy.items()})


def measured(member: Member, first: list[str], second: list[str]) -> Measured:
    """From what the processes said, and what the database holds."""
    said = first + second
    struck = said.index(f"struck {member.name}")
    with opened(member.database) as engine:
        effects = keys_done(engine, member.name)
    return Measured(
        len(effects),
        acknowledged=f"acknowledged {member.name}" in said[:struck],
        redelivered=f"received {member.name}" in said[struck:],
    )
