"""What the relay's log says where the same thing happens to very many rows."""

import logging
import re
from typing import cast

import pytest
from sqlalchemy.exc import DBAPIError

from outbox.flood import SECONDS, Flood
from outbox.store.attempt import Attempt
from relay.events import LogEvents


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Row:
    """Stands for an attempt."""

    def __init__(self, row_id: int, topic: str) -> None:
        self.row_id = row_id
        self.topic = topic


def attempt(row_id: int, topic: str = "payments") -> Attempt:
    return cast(Attempt, Row(row_id, topic))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events(clock: Clock, caplog: pytest.LogCaptureFixture) -> LogEvents:
    caplog.set_level(logging.DEBUG)
    return LogEvents(logging.getLogger("relay"), Flood(clock))


def test_a_hundred_thousand_refusals_do_not_fill_the_log(
    events: LogEvents, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a topic that nobody may write to; When each of very many rows is refused, and another topic's as well
    for row_id in range(100_000):
        events.refused(attempt(row_id), "code 16", buried=False)
    events.refused(attempt(1, "refunds"), "code 16", buried=False)
    events.refused(attempt(2), "code 16", buried=True)
    # Then the first ones are told, and so is what is of another topic, or worse
    assert 10 <= len(caplog.messages) <= 100
    assert "topic=refunds" in caplog.messages[-2]
    assert "dead" in caplog.messages[-1]
    told = sum("topic=payments" in it and "dead" not in it for it in caplog.messages)
    # When it goes on later; Then it is told again, and how many were not
    clock.now += SECONDS
    events.refused(attempt(3), "code 16", buried=False)
    (left_out,) = re.findall(r"(\d+) lines like this were left out", caplog.messages[-1])
    assert told + int(left_out) == 100_000


def test_what_was_left_out_is_told_although_nothing_like_it_comes_again(
    events: LogEvents, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Given more dead rows than are told of one by one, and nothing after them
    for row_id in range(1_000):
        events.refused(attempt(row_id), "code 13", buried=True)
    told = len(caplog.messages)
    # When the relay claims on; Then nothing is said while the next one would tell
    clock.now += SECONDS
    events.claimed(())
    assert len(caplog.messages) == told
    # And afterwards their number, once, at their level
    clock.now += SECONDS
    events.claimed(())
    events.claimed(())
    assert len(caplog.messages) == told + 1
    assert caplog.messages[-1].startswith("refused topic=payments: dead; ")
    assert f": {1_000 - told} more lines like this were left out" in caplog.messages[-1]
    assert caplog.records[-1].levelno == logging.ERROR


def test_a_topic_that_is_closed_for_hours_is_told_of_now_and_then(
    events: LogEvents, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3_600):
        events.partial_outage(5, "topic payments: no queue is writable")
        clock.now += 0.1
    assert len(caplog.messages) <= 360 / SECONDS + 1
    events.partial_outage(5, "topic refunds: no queue is writable")
    assert "refunds" in caplog.messages[-1]


def test_what_a_database_said_is_one_line_without_the_statement(
    events: LogEvents, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a statement that failed, with what it was given
    said = Exception("canceling statement\ndue to statement timeout")
    error = DBAPIError("UPDATE outbox SET token = :token", {"token": "secret"}, said)
    # When each of the relay's steps tells of it
    events.claim_failed(error)
    events.undecided(3, error)
    events.work_failed("retention", error)
    # Then lines can be counted and read, and nothing of the rows is among them
    for line in caplog.messages:
        assert line.endswith("canceling statement due to statement timeout")
        assert "\n" not in line
    assert len(caplog.messages) == 3


def test_a_database_that_is_away_is_told_of_now_and_then_and_when_it_is_back(
    events: LogEvents, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Given claims that fail each second, for a little longer than lines of one kind are counted
    for _ in range(int(SECONDS) + 1):
        events.claim_failed(ConnectionError("no route"))
        clock.now += 1
    # When one succeeds, and the next
    events.claimed([])
    events.claimed([])
    # Then the log tells of the outage twice, and of its end once
    failed = "claim failed, the database may be away: no route"
    assert caplog.messages == [
        failed,
        f"{failed} (9 lines like this were left out within 10 s)",
        "the database takes claims again",
    ]
