"""What the embedded broker makes of files that are missing, broken, locked or replaced, and of messages it refuses."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbox.brokers.base import Ending, Outage, Outgoing, Refused, Sent
from outbox.brokers.embedded import EmbeddedBroker, EmbeddedInspector, Unavailable
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting
from tests.contracts.rig import look_up, now
from tests.unit.brokers.embedded_bench import GROUP, TOPIC, Bench, bench_in, end, message, prepare
from tests.waiting import expect_soon


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench on a new file."""
    yield from bench_in(tmp_path)


def outage(broker: EmbeddedBroker, timeout: float = 5) -> str:
    """The reason of the outage that a send must meet."""
    (outcome,) = broker.send([message()], timeout)
    assert isinstance(outcome, Outage), outcome
    return outcome.reason


def test_it_says_what_it_is(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    # Given nothing; When a broker is opened; Then its log says what it is good for
    bench.broker()
    assert "for first runs and tests" in caplog.text


def test_a_file_that_is_no_database_is_an_outage(bench: Bench) -> None:
    # Given a text file; When it is used as a broker; Then the reason names the file
    bench.path.write_text("not a database, but longer than the header of one " * 4)
    assert str(bench.path) in outage(bench.broker())
    with pytest.raises(Unavailable):
        bench.inspector().visible(TOPIC)


def test_a_file_of_another_version_is_an_outage(bench: Bench) -> None:
    # Given a file of a later version; When it is used; Then the reason names the remedy
    other = sqlite3.connect(bench.path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    assert "delete the broker's file" in outage(bench.broker())


def test_a_file_that_appears_later_ends_the_outage(tmp_path: Path) -> None:
    # Given a folder that is missing
    broker = EmbeddedBroker(tmp_path / "later" / "broker.db", GROUP)
    outage(broker)
    # When it appears; Then the same connection works
    (tmp_path / "later").mkdir()
    (outcome,) = broker.send([message()], timeout=60)
    assert isinstance(outcome, Sent)
    broker.close()


def test_a_listener_outlives_an_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given a listener on a file that is away
    broker = EmbeddedBroker(tmp_path / "later" / "broker.db", GROUP)
    broker.listen([TOPIC], lambda check, answer: None)
    expect_soon(lambda: "checks are not answered" in caplog.text, "the outage is logged")
    assert not broker.checks_ready()
    # When the file appears; Then it registers by itself
    (tmp_path / "later").mkdir()
    expect_soon(broker.checks_ready, "registered")
    expect_soon(lambda: "checks are answered again" in caplog.text, "the end of the outage is logged")
    broker.close()


def test_a_locked_file_is_an_outage_that_writes_nothing(bench: Bench) -> None:
    # Given a half, and another process in a long transaction
    broker = bench.broker()
    half = prepare(broker)
    other = sqlite3.connect(bench.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    # When the time limit passes, and not before anything was tried; Then nothing is stored and nothing is ended
    expect_soon(lambda: "locked" in outage(broker, timeout=0.05), "the lock is the reason")
    (ended,) = broker.resolve([Ending(half, Verdict.COMMIT)], until=monotonic() + 0.05)
    assert ended.confirmation is Confirmation.UNANSWERED
    other.execute("ROLLBACK")
    other.close()
    assert bench.inspector().visible(TOPIC) == []
    assert [seen.half_id for seen in bench.inspector().open_halves()] == [half.half_id]


def test_a_file_that_was_replaced_is_opened_anew(bench: Bench) -> None:
    # Given a half in a file that is deleted then
    broker = bench.broker()
    old = prepare(broker)
    for path in bench.path.parent.iterdir():
        path.unlink()
    # When the broker is used again
    new = prepare(broker)
    end(broker, new)
    # Then the new file takes messages, and does not take the old handle for one of its own
    assert [seen.unique_id for seen in bench.inspector().visible(TOPIC)] == [new.half_id]
    assert end(broker, old).confirmation is Confirmation.GONE
    assert look_up(broker, old, now()) is Sighting.CANNOT_TELL


def test_a_handle_that_is_no_handle_is_gone(bench: Bench) -> None:
    # Given words that no broker wrote; When a half is ended by them; Then it is gone
    broker = bench.broker()
    half = prepare(broker)
    for words in ("", "x", ":", half.handle + "x", half.handle.replace(":", ""), "1"):
        assert end(broker, replace(half, handle=words)).confirmation is Confirmation.GONE


def test_a_group_needs_a_name(tmp_path: Path) -> None:
    # Given no group; When a broker is opened; Then the mistake is named
    with pytest.raises(ValueError, match="group"):
        EmbeddedBroker(tmp_path / "broker.db", "")


@pytest.mark.parametrize(
    ("outgoing", "field"),
    [
        (message(b""), "body"),
        (message(b"x" * (4 * 1024 * 1024 + 1)), "body"),
        (message(topic=""), "topic"),
        (message(topic="a b"), "topic"),
        (message(topic="t" * 128), "topic"),
        (message(topic="TRANS_CHECK_MAX_TIME_TOPIC"), "topic"),
        (message(key="a\x01b"), "properties"),
        (message(key="\ud800"), "properties"),
        (message(key="k" * (32 * 1024)), "properties"),
        (replace(message(), properties={"a": "\x02"}), "properties"),
        (replace(message(), tag="\udfff"), "properties"),
    ],
)
def test_what_rocketmq_refuses_is_refused(bench: Bench, outgoing: Outgoing, field: str) -> None:
    # Given a message over a limit, and a good one; When both are sent
    good = message()
    outcomes = bench.broker().send([outgoing, good], timeout=60)
    # Then only the first is refused, and the reason names the field
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].reason.startswith(field)
    assert outcomes[1] == Sent(good.unique_id)


def test_the_largest_body_passes(bench: Bench) -> None:
    # Given a body at the limit; When it is sent; Then it is stored
    (outcome,) = bench.broker().send([message(b"\0" * (4 * 1024 * 1024))], timeout=30)
    assert isinstance(outcome, Sent)


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(min_size=1, max_size=300), TEXT, st.none() | TEXT, st.dictionaries(TEXT, TEXT, max_size=4))
def test_whatever_is_stored_comes_back(
    bench: Bench, body: bytes, key: str, tag: str | None, properties: dict[str, str]
) -> None:
    # Given any message that no limit forbids
    own = {name: value for name, value in properties.items() if name not in {"KEYS", "TAGS", "UNIQ_KEY"}}
    outgoing = replace(message(body, key), tag=tag, properties=own)
    # When it is published; Then it is there as it was
    broker = bench.broker()
    end(broker, prepare(broker, outgoing))
    broker.close()
    inspector = EmbeddedInspector(bench.path, bench.timing, bench.clock)
    seen = inspector.visible(TOPIC)[-1]
    inspector.close()
    assert (seen.unique_id, seen.body, seen.key, seen.tag) == (outgoing.unique_id, body, key, tag)
    assert own.items() <= seen.properties.items()
