"""Real processes: races for one key, and SIGKILL at every step."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from outbox.consumer import Duplicate, Processed, Retry
from tests.integration.consumer.shop import keys_done, rows, shop, until_free
from tests.services.databases import fresh_database
from tests.unit.consumer.fakes import delivery

ROOT = Path(__file__).parents[3]
CRASH_POINTS = [
    "after reception",
    "after the claim",
    "after the reservation",
    "inside the handler",
    "after the last write",
    "before the acknowledgement",
]


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child process of ours, gone at the end."""
    command = [sys.executable, "-m", "tests.integration.consumer.child", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def race(url: str, keys: list[str], fails: list[int]) -> list[list[str]]:
    """The outcomes of processes that start at the same moment, one list each."""
    with ExitStack() as stack:
        processes = [stack.enter_context(child("race", url, ",".join(keys), str(failures))) for failures in fails]
        for process in processes:
            assert line(process) == "ready"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [[line(process) for _ in keys] for process in processes]


@pytest.mark.parametrize("processes", [2, 4])
def test_one_key_has_one_effect_whoever_is_first(migrated_url: str, engine: Engine, processes: int) -> None:
    # Given processes on a barrier, with the same keys in the same order
    keys = [f"k{number}" for number in range(5)]
    # When they go
    outcomes = race(migrated_url, keys, [0] * processes)
    # Then each key has one owner, and the others know it or come again
    for taken in zip(*outcomes, strict=True):
        counted = Counter(taken)
        assert counted["Processed"] == 1
        assert set(counted) <= {"Processed", "Duplicate", "InProgress", "Retry"}
    assert keys_done(engine) == keys


def test_an_owner_that_fails_leaves_the_key_to_one_other(migrated_url: str, engine: Engine) -> None:
    # Given four processes, three of which fail after their first effect
    outcomes = race(migrated_url, ["k"] * 6, [1, 1, 1, 0])
    # When each has tried six times, and one more comes, whose turn it is if all of theirs met somebody at work
    inbox = shop(migrated_url)
    last = inbox.process(delivery(keys=("k",), body=b"k"))
    inbox.close()
    # Then one effect is left, and everybody who came later knows it
    counted = Counter([*(outcome for each in outcomes for outcome in each), type(last).__name__])
    assert counted["Processed"] == 1
    assert set(counted) <= {"Duplicate", "Processed", "InProgress", "Retry"}
    assert isinstance(last, Duplicate | Processed)
    assert keys_done(engine) == ["k"]
    assert rows(engine) == 1


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_kill_at_any_step_and_a_redelivery_leave_one_effect(migrated_url: str, engine: Engine, point: str) -> None:
    # Given a consumer process that is killed at that step
    with child("crash", migrated_url, point) as process:
        assert line(process) == "here"
        process.kill()
    # When the message is delivered again until the database has noticed the death
    inbox = shop(migrated_url, row_lock=point == "after the reservation")
    again = delivery(keys=("k",), body=b"same", attempt=2)
    outcome = until_free(inbox, again, Retry)
    # Then there is one effect, whoever made it
    assert outcome == (Duplicate() if point == "before the acknowledgement" else Processed())
    assert keys_done(engine) == ["k"]
    assert inbox.process(again) == Duplicate()
    inbox.close()


def test_the_naive_look_then_mark_takes_effect_twice(postgres_url: str) -> None:
    # Given a naive consumer: look, work, mark, in statements of their own
    engine = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as one, engine.connect() as two:
        one.exec_driver_sql("CREATE TABLE seen (k TEXT PRIMARY KEY)")
        one.exec_driver_sql("CREATE TABLE effect (k TEXT)")
        # When two of them meet on one key
        for look in (one, two):
            assert look.exec_driver_sql("SELECT 1 FROM seen WHERE k = 'k'").first() is None
        for work in (one, two):
            work.exec_driver_sql("INSERT INTO effect VALUES ('k')")
            work.exec_driver_sql("INSERT INTO seen VALUES ('k') ON CONFLICT DO NOTHING")
        # Then the effect is there twice
        assert one.exec_driver_sql("SELECT count(*) FROM effect").scalar_one() == 2
    engine.dispose()


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


def test_the_naive_mark_before_work_loses_the_message(postgres_url: str) -> None:
    # Given a naive consumer that marks the key in a transaction of its own, then dies before the effect
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (k TEXT PRIMARY KEY)")
        connection.exec_driver_sql("CREATE TABLE effect (k TEXT)")
    mark = "INSERT INTO seen VALUES ('k') ON CONFLICT DO NOTHING"
    with engine.begin() as connection:
        assert connection.exec_driver_sql(mark).rowcount == 1
    # When the message comes again
    with engine.begin() as connection:
        is_new = connection.exec_driver_sql(mark).rowcount == 1
    # Then it passes for a duplicate, and the effect never happens
    assert not is_new
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM effect").scalar_one() == 0
    engine.dispose()
