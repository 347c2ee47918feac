"""Identities are unique across threads and processes, and have the layout that broker tools read."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from outbox.identity import UniqueIds, fresh_number, fresh_token, unique_ids
from tests.forked import in_a_child, knows_of_threads, needs_fork

COUNT = 2000


def test_a_token_is_16_hexadecimal_digits_and_new_each_time() -> None:
    tokens = [fresh_token() for _ in range(COUNT)]
    assert all(re.fullmatch("[0-9a-f]{16}", token) for token in tokens)
    assert len(set(tokens)) == COUNT


def test_a_unique_id_has_the_layout_of_the_java_client() -> None:
    # Given two ids drawn one after the other, and the time around them
    before = time.time()
    first, second = unique_ids.fresh(), unique_ids.fresh()
    after = time.time()
    # Then they are 32 upper-case digits: the process, the milliseconds of the month, a counter
    assert re.fullmatch("[0-9A-F]{32}", first)
    assert first[:20] == second[:20]
    month = datetime.fromtimestamp(before, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    drawn = month.timestamp() + int(first[20:28], 16) / 1000
    assert before - 0.001 <= drawn <= after
    assert (int(second[28:], 16) - int(first[28:], 16)) % 0x10000 == 1


def test_unique_ids_differ_across_threads() -> None:
    ids = UniqueIds()
    with ThreadPoolExecutor(8) as threads:
        drawn = [
            each for batch in threads.map(lambda _: [ids.fresh() for _ in range(COUNT)], range(8)) for each in batch
        ]
    assert len(drawn) == 8 * COUNT


def test_the_milliseconds_turn_with_the_month(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given the last millisecond of a year and the first one of the next
    ids = UniqueIds()
    new_year = datetime(2031, 1, 1, tzinfo=UTC).timestamp()
    monkeypatch.setattr(time, "time", lambda: new_year - 0.5)
    old = ids.fresh()
    monkeypatch.setattr(time, "time", lambda: new_year + 0.5)
    new = ids.fresh()
    # Then the count of milliseconds starts again
    assert int(old[20:28], 16) == 31 * 86400 * 1000 - 500
    assert int(new[20:28], 16) == 500


def test_a_number_is_new_each_time_whatever_the_application_seeds() -> None:
    # Given an application that seeds the generator that everybody shares
    drawn = set()
    for _ in range(COUNT):
        random.seed(1)
        # When it draws numbers
        drawn.add(fresh_number())
    # Then none of them comes again, and each fits into a signed 64-bit integer
    assert len(drawn) == COUNT
    assert all(0 <= number < 2**63 for number in drawn)


@needs_fork
@knows_of_threads
def test_a_forked_process_draws_ids_of_its_own() -> None:
    # Given a process that has drawn ids
    ids = UniqueIds()
    drawn = {ids.fresh()[:20]}
    # When it forks twice
    drawn |= {in_a_child(ids.fresh)[:20] for _ in range(2)}
    drawn.add(ids.fresh()[:20])
    # Then each process has a name of its own, and the parent keeps its one
    assert len(drawn) == 3


@needs_fork
@knows_of_threads
def test_a_forked_process_draws_numbers_of_its_own() -> None:
    # When a process forks twice / Then each of the three draws another number
    assert len({in_a_child(fresh_number), in_a_child(fresh_number), str(fresh_number())}) == 3
