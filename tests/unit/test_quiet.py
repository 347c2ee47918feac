"""What the log of a process says where all its messages meet the same fate."""

import logging
from collections.abc import Iterator

import pytest

from outbox.cli.quiet import Quiet
from outbox.flood import SECONDS, Flood
from tests.unit.relay.test_events import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> Iterator[list[str]]:
    """What a quiet handler writes."""
    written: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    handler, root = Handler(), logging.getLogger()
    handler.addFilter(Quiet(Flood(clock)))
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


def failed(number: int, topic: str = "orders", level: int = logging.WARNING) -> None:
    kind = {"kind": f"messages of {topic}: comes again"}
    logging.getLogger("outbox.consumer.settlement").log(level, "message %d of %s", number, topic, extra=kind)


def test_very_many_failures_do_not_fill_the_log(lines: list[str], clock: Clock) -> None:
    # Given a topic whose messages all fail; When one of another topic fails as well, or something worse happens
    for number in range(10_000):
        failed(number)
    failed(1, "refunds")
    failed(2, level=logging.ERROR)
    # Then the first ones are told, and so are the others
    assert 10 <= len(lines) <= 100
    assert lines[-2:] == ["message 1 of refunds", "message 2 of orders"]
    told = sum("orders" in line for line in lines[:-1])
    # When it goes on later / Then it is told again, and how many were not
    clock.now += SECONDS
    failed(7)
    assert lines[-1] == f"message 7 of orders ({10_000 - told} lines like this were left out within 10 s)"


def test_what_was_left_out_is_told_with_whatever_comes_next(lines: list[str], clock: Clock) -> None:
    for number in range(60):
        failed(number)
    clock.now += 2 * SECONDS
    logging.getLogger("outbox.consumer.serve").info("retention: %d effects forgotten", 0)
    assert lines[-2:] == [
        "messages of orders: comes again: 10 more lines like this were left out within 10 s",
        "retention: 0 effects forgotten",
    ]


def test_the_lines_of_handlers_and_of_debug_are_all_written(lines: list[str]) -> None:
    for number in range(200):
        logging.getLogger("shop").warning("no stock")
        failed(number, level=logging.DEBUG)
    assert len(lines) == 400
