"""``outbox audit`` on real stores and brokers: every kind of finding is provoked, and nothing else is found."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import relay.wiring
from outbox.audit import Audit, Untold, scope_of
from outbox.brokers.base import ORIGIN, ROW_ID, Broker, Half, Outgoing
from outbox.brokers.embedded import EmbeddedInspector
from outbox.envelope import Envelopes
from outbox.identity import fresh_token, unique_ids
from outbox.lifecycle import State, Verdict
from outbox.message import Mode
from outbox.settings import Settings, load
from outbox.store.attempt import Attempt
from outbox.store.audited import AuditedRows
from outbox.store.claims import Claims
from outbox.store.clock import utc_after, utc_now
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Winner
from outbox.store.identity import Identity
from outbox.store.operations import Operations
from outbox.verdict import Confirmation
from outbox.wiring import open_broker, open_ledger
from tests.contracts.rig import end_one, prepare_one, send_all
from tests.integration.commands import Command, in_process
from tests.integration.conftest import Copies
from tests.integration.rows import LONG_LEASE, added, column, force
from tests.services.ports import free_port
from tests.services.rocketmq import create_topics
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE = 120.0
NOTHING = {"lost": 0, "repeated": 0, "unfinished": 0, "foreign": 0, "phantom": 0}


@dataclass(frozen=True, slots=True)
class Bench:
    """A database, a broker with a topic of the test's own, and the steps of a relay one by one."""

    settings: Settings
    database: Database
    broker: Broker
    topic: str
    run: Command

    def claimed(self, **message: Any) -> Attempt:
        """A new row under an attempt."""
        (row_id,) = added(self.database, topic=self.topic, **message)
        (attempt,) = Claims(self.database).claim(1, 1_000_000, lease=LONG_LEASE)
        assert attempt.row_id == row_id
        return attempt

    def sealed(self, attempt: Attempt, **properties: str) -> Outgoing:
        """The row's message, with other properties where they are given."""
        outgoing = Envelopes(self.origin()).seal(attempt)
        return replace(outgoing, properties={**outgoing.properties, **properties})

    def origin(self) -> str:
        """The origin of this database's messages."""
        return Identity(self.database).origin(self.settings.service)

    def stored(self, outgoing: Outgoing) -> Half:
        """A half at the broker."""
        return prepare_one(self.broker, outgoing)

    def commit(self, half: Half) -> None:
        """Makes a visible message of it, once more if it is one."""
        ended = end_one(self.broker, half, Verdict.COMMIT)
        assert ended.confirmation is Confirmation.CONFIRMED, ended

    def decided(self) -> tuple[Attempt, Half]:
        """A committed row whose half waits for its COMMIT."""
        attempt = self.claimed()
        half = self.stored(self.sealed(attempt))
        assert Decisions(self.database).decide(Outcomes(winners=[Winner(attempt, half)]), 15) == {attempt.row_id}
        return attempt, half

    def delivered(self) -> tuple[Attempt, Half]:
        """A row that went the whole way."""
        attempt, half = self.decided()
        self.commit(half)
        self.settle(attempt.row_id)
        return attempt, half

    def settle(self, row_id: int) -> None:
        """Calls the row delivered, whether it was or not."""
        force(self.database, row_id, state=State.DELIVERED, delivered_at=utc_now(), lease_id=None)

    def audited(self, *arguments: object) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        """Exit code, findings, and counts."""
        done = self.run("audit", "--json", *arguments)
        *findings, counts = map(json.loads, done.out.splitlines())
        assert counts["kind"] == "counts"
        assert {**NOTHING, **Counter(it["kind"] for it in findings)} == {name: counts[name] for name in NOTHING}
        return done.code, findings, counts

    def expect_findings(
        self, *expected: tuple[str, int | None], arguments: tuple[object, ...] = ()
    ) -> list[dict[str, Any]]:
        """Waits until an audit finds these kinds of these rows, in any order, and nothing else."""
        seen: list[tuple[int, list[dict[str, Any]], dict[str, Any]]] = []

        def agreed() -> bool:
            seen.append(self.audited(*arguments))
            code, findings, counts = seen[-1]
            return (
                (code, counts["unclear"]) == (1 if expected else 0, 0)
                and sorted((it["kind"], it["row"] or 0) for it in findings)
                == sorted((kind, row or 0) for kind, row in expected)
            )  # fmt: skip

        try:
            expect_soon(agreed, f"an audit finds {expected}", within=DEADLINE)
        except AssertionError as error:
            raise AssertionError(f"{error}; the last one: {seen[-1]}") from error
        return seen[-1][1]


@pytest.fixture(params=["sqlite-embedded", "postgresql-rocketmq"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Bench]:
    """Each stack in turn."""
    backend, transport = request.param.split("-")
    copies: Copies = request.getfixturevalue(f"{backend}_copies")
    topic = f"payments-{fresh_token()}"
    if transport == "embedded":
        broker_url = f"embedded://{tmp_path}/broker.db"
        made_before(tmp_path / "broker.db")
    else:
        namesrv = request.getfixturevalue("rocketmq")
        create_topics(namesrv, [topic, f"{topic}-b"], queues=4)
        broker_url = f"rocketmq://{namesrv}"
    with copies(tmp_path) as url:
        yield from opened(url, broker_url, topic, in_process(monkeypatch, capsys), monkeypatch)


def made_before(path: Path) -> None:
    """Makes the embedded broker's file a day ago: a store that is younger than a decision proves nothing about it."""
    with EmbeddedInspector(path, clock=lambda: time.time() - 86400) as inspector:
        assert inspector.topics() == []


def opened(url: str, broker_url: str, topic: str, run: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench on these, with the command's settings in the environment."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"OUTBOX_{name.upper()}", raising=False)
    values = {"database_url": url, "broker_url": broker_url, "origin": "tests"}
    for name, value in values.items():
        monkeypatch.setenv(f"OUTBOX_{name.upper()}", value)
    database, settings = Database(url), load(**values)
    broker = open_broker(settings)
    yield Bench(settings, database, broker, topic, run)
    broker.close()
    database.close()


def test_what_a_relay_shipped_agrees(bench: Bench) -> None:
    # Given rows that a relay shipped, one of them cancelled before it ran
    rows = added(bench.database, 40, topic=bench.topic)
    assert Operations(bench.database).cancel(rows[:1], "not wanted") == rows[:1]
    daemon = relay.wiring.build(bench.settings, bench.database, bench.broker)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    expect_soon(
        lambda: Operations(bench.database).figures().rows[State.DELIVERED] == 39, "all are delivered", within=DEADLINE
    )
    daemon.stop()
    thread.join()
    # When they are audited / Then nothing is found, and everything was looked at
    assert bench.expect_findings() == []
    expect_soon(lambda: bench.audited()[2]["messages"] == 39, "every message was read", within=DEADLINE)
    code, _, counts = bench.audited("--last", "1h", "--topic", bench.topic)
    assert (code, counts["rows"], counts["messages"], counts["topic"]) == (0, 40, 39, bench.topic)
    assert bench.run("audit").out == "40 rows, 39 messages: they agree\n"


def test_a_half_that_was_committed_twice_is_repeated(bench: Bench) -> None:
    # Given two delivered rows, one of whose halves is committed again
    bench.delivered()
    attempt, half = bench.delivered()
    bench.commit(half)
    # When it is audited / Then the row is named, with both places
    (finding,) = bench.expect_findings(("repeated", attempt.row_id))
    assert (finding["key"], finding["unique_id"], finding["state"]) == (attempt.key, half.half_id, "delivered")
    assert finding["detail"].count(half.half_id) == 2
    text = bench.run("audit")
    assert (text.code, text.out.splitlines()[-1]) == (1, "2 rows, 3 messages: 1 repeated")


def test_a_delivered_row_without_a_message_is_lost(bench: Bench) -> None:
    # Given a row that is called delivered although its half was never committed
    bench.delivered()
    attempt, _ = bench.decided()
    bench.settle(attempt.row_id)
    # When it is audited / Then it is lost
    (finding,) = bench.expect_findings(("lost", attempt.row_id))
    assert (finding["topic"], finding["key"], finding["state"]) == (bench.topic, attempt.key, "delivered")


def test_a_plain_row_without_a_message_is_lost_and_one_that_was_sent_twice_is_repeated(bench: Bench) -> None:
    # Given two plain rows, of which one was sent twice, as a relay that dies does, and one never; on a store that is
    # older than they are
    bench.delivered()
    twice, never = bench.claimed(), bench.claimed()
    for attempt in (twice, never):
        force(bench.database, attempt.row_id, mode=Mode.PLAIN, half_id=unique_ids.fresh())
        bench.settle(attempt.row_id)
    send_all(bench.broker, [bench.sealed(twice), bench.sealed(twice)])
    # When they are audited / Then both are found
    bench.expect_findings(("repeated", twice.row_id), ("lost", never.row_id))


def test_open_rows_are_unfinished_once_they_are_old(bench: Bench) -> None:
    # Given a pending row, a committed one with its message and one without, all young
    pending = bench.claimed().row_id
    (visible, half), (absent, _) = bench.decided(), bench.decided()
    bench.commit(half)
    # When they are audited / Then time is left to them
    bench.expect_findings()
    # When they have become old / Then they are unfinished, and what should be visible and is not is lost
    for row_id in (pending, visible.row_id, absent.row_id):
        force(bench.database, row_id, created_at=utc_after(-7200))
    for row_id in (visible.row_id, absent.row_id):
        force(bench.database, row_id, decided_at=utc_after(-3600))
    found = (("unfinished", pending), ("unfinished", visible.row_id), ("lost", absent.row_id))
    bench.expect_findings(*found, arguments=("--older-than", "30m"))
    bench.expect_findings(arguments=("--older-than", "3h"))
    # When a row is only due later / Then it is not late
    force(bench.database, pending, not_before=utc_after(3600))
    bench.expect_findings(*found[1:])
    # When it is dead / Then somebody has to decide
    force(bench.database, pending, state=State.DEAD, reason="refused ten times", available_at=utc_after(-1))
    bench.expect_findings(*found)


def test_a_message_that_its_row_forbids_is_a_phantom(bench: Bench) -> None:
    # Given a half that is committed for a cancelled row, and a second half of a delivered row
    cancelled, (delivered, _) = bench.claimed(), bench.delivered()
    half, second = (bench.stored(bench.sealed(attempt)) for attempt in (cancelled, delivered))
    assert Operations(bench.database).cancel([cancelled.row_id], "stock is gone") == [cancelled.row_id]
    for each in (half, second):
        bench.commit(each)
    # And a dead row whose outcome was unknown, and whose message is there after all
    dead, own = bench.decided()
    bench.commit(own)
    unknown = "outcome unknown: the broker's files are gone"
    force(bench.database, dead.row_id, state=State.DEAD, reason=unknown, available_at=utc_after(-1))
    # When they are audited / Then the first two are found, and the dead row's message is left to its operator
    found = bench.expect_findings(
        ("phantom", cancelled.row_id), ("phantom", delivered.row_id), ("repeated", delivered.row_id),
        ("unfinished", dead.row_id),
    )  # fmt: skip
    assert {it["unique_id"] for it in found if it["kind"] == "phantom"} == {half.half_id, second.half_id}
    # When the dead row's message is another one / Then it is a phantom too
    force(bench.database, dead.row_id, half_id=None)
    bench.expect_findings(
        ("phantom", cancelled.row_id), ("phantom", delivered.row_id), ("repeated", delivered.row_id),
        ("phantom", dead.row_id), ("unfinished", dead.row_id),
    )  # fmt: skip


def test_messages_of_others_and_of_no_row_are_foreign(bench: Bench) -> None:
    # Given a delivered row, and messages of another service, of no service, of no row and of another row's key
    attempt, _ = bench.delivered()
    strangers = [
        bench.sealed(attempt, **{ORIGIN: "another/database"}),
        replace(bench.sealed(attempt), properties={}),
        bench.sealed(attempt, **{ROW_ID: "99999999999999999999999"}),
        bench.sealed(attempt, **{ROW_ID: str(attempt.row_id + 10**6)}),
        replace(bench.sealed(attempt), key="another-key"),
    ]
    send_all(bench.broker, strangers)
    # When they are audited / Then each is found, and none counts as a repeat
    rows = [None, None, None, attempt.row_id + 10**6, attempt.row_id]
    found = bench.expect_findings(*[("foreign", row) for row in rows])
    assert {it["unique_id"] for it in found} == {each.unique_id for each in strangers}
    # When the other service is expected / Then its message is counted, and the others are found as before
    bench.expect_findings(*[("foreign", row) for row in rows[1:]], arguments=("--expect-origin", "another"))
    assert bench.audited("--expect-origin", "another")[2]["expected"] == 1
    told = bench.run("audit", "--expect-origin", "yet-another", "--expect-origin", "another")
    assert told.out.splitlines()[-1] == "1 row, 6 messages, 1 of them of expected origins: 4 foreign"


def test_a_message_of_this_database_under_another_origin_is_no_other_service_s(bench: Bench) -> None:
    # Given a row of this database that was shipped while OUTBOX_ORIGIN was another word
    attempt, _ = bench.delivered()
    database_id = bench.origin().partition("/")[2]
    send_all(bench.broker, [bench.sealed(attempt, **{ORIGIN: f"test/{database_id}"})])
    # When it is audited, though the word is expected / Then it is found, and the setting is doubted
    (finding,) = bench.expect_findings(("foreign", None), arguments=("--expect-origin", "test"))
    assert "is OUTBOX_ORIGIN, now tests, right?" in finding["detail"]


def test_a_topic_that_neither_a_row_nor_the_broker_knows_is_a_slip(bench: Bench) -> None:
    # Given a topic that has rows and messages, one that has a row alone, and one that has a message alone
    attempt, _ = bench.delivered()
    added(bench.database, topic=f"{bench.topic}-rows")
    send_all(bench.broker, [replace(bench.sealed(attempt), topic=f"{bench.topic}-b")])
    # When one is audited that neither side knows / Then that is said
    done = bench.run("audit", "--topic", f"{bench.topic}x")
    assert (done.code, done.out) == (2, "")
    assert f"--topic {bench.topic}x: neither a row nor the broker knows it" in done.err
    # And what one side knows is audited, in a range that has nothing too
    bench.expect_findings(arguments=("--topic", f"{bench.topic}-rows"))
    bench.expect_findings(("foreign", attempt.row_id), arguments=("--topic", f"{bench.topic}-b"))
    before = ("--since", "2020-01-01T00:00Z", "--until", "2020-01-02T00:00Z")
    assert bench.run("audit", "--topic", f"{bench.topic}-b", *before).out == "0 rows, 0 messages: they agree\n"


def test_only_the_range_is_looked_at(bench: Bench) -> None:
    # Given a repeated message that became visible just now, and a row far behind a gap of ids
    attempt, half = bench.delivered()
    bench.commit(half)
    (far,) = added(bench.database, topic=bench.topic)
    force(bench.database, far, id=10**9)
    bench.expect_findings(("repeated", attempt.row_id))
    # When an earlier time is audited / Then there is nothing to be looked at
    begin, end = (datetime.now(UTC) - timedelta(hours=hours) for hours in (2, 1))
    code, _, counts = bench.audited("--since", begin.isoformat(), "--until", end.isoformat())
    assert (code, counts["rows"], counts["messages"]) == (0, 0, 0)
    assert datetime.fromisoformat(counts["since"]) == begin
    # When a range around now is / Then both rows are
    _, _, counts = bench.audited("--since", begin.isoformat())
    assert (counts["rows"], counts["messages"], counts["repeated"]) == (2, 2, 1)
    assert column(bench.database, 10**9, "state") == State.PENDING


def test_a_message_whose_row_retention_has_deleted_is_nothing_to_report(bench: Bench) -> None:
    # Given a message of a row that is not there any more
    attempt, _ = bench.delivered()
    force(bench.database, attempt.row_id, id=attempt.row_id + 1)
    bench.expect_findings(("foreign", attempt.row_id), arguments=("--last", "1h"))
    # When retention reaches to this day / Then the message is counted, not reported
    rows, ledger = AuditedRows(bench.database), open_ledger(bench.settings)
    now = rows.now()
    scope = scope_of(now, now - timedelta(hours=1), now, bench.topic, older_than=600, retention=-3600)
    audit = Audit(rows, bench.broker, ledger, bench.origin(), scope)
    assert list(audit.findings(0, lambda *_: None)) == []
    assert (audit.messages, audit.untold) == (1, {Untold.PURGED: 1})
    ledger.close()


def test_a_broker_that_cannot_be_asked_is_told(bench: Bench, tmp_path: Path) -> None:
    # Given a delivered row, and a broker that is away, or not one at all
    bench.delivered()
    (tmp_path / "notes.txt").write_text("no database\n" * 1000)
    # When it is audited / Then the exit code is 2 and the cause is named
    for broker_url in (f"rocketmq://127.0.0.1:{free_port()}", f"embedded://{tmp_path}/notes.txt"):
        done = bench.run("audit", "--json", "--broker-url", broker_url)
        assert (done.code, done.out) == (2, "")
        assert broker_url.partition("//")[2] in done.err
        assert "Traceback" not in done.err


def test_a_store_that_was_replaced_tells_nothing_of_older_rows(bench: Bench, tmp_path: Path) -> None:
    # Given a delivered row and a broker that knows nothing of it
    bench.delivered()
    # When it is audited against an empty store / Then nobody calls the row lost
    done = bench.run("audit", "--json", "--broker-url", f"embedded://{tmp_path}/new.db")
    counts = json.loads(done.out.splitlines()[-1])
    assert (done.code, counts["lost"], counts["expired"] + counts["unclear"]) == (2 if counts["unclear"] else 0, 0, 1)


def test_where_rows_went_to_another_broker_the_way_out_is_told(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker that was there before a row, and the one that delivered the row
    there = f"embedded://{tmp_path}/there.db"
    earlier = open_broker(bench.settings.model_copy(update={"broker_url": there}))
    assert earlier.reachable(DEADLINE)
    earlier.close()
    bench.delivered()
    # When the wrong one is audited / Then nothing is called lost, and it is told why, and what else to ask for
    done = bench.run("audit", "--broker-url", there)
    assert (done.code, done.out) == (2, "1 row, 0 messages: 1 unclear\n")
    assert "look-up of 1 halves cannot tell" in caplog.text
    # And both ways that are named lead to the end
    assert re.search("--broker-url, .* by --since", done.err)
    assert bench.run("audit").code == 0
    since = AuditedRows(bench.database).now().isoformat()
    assert bench.run("audit", "--broker-url", there, "--since", since).code == 0


def test_a_terminal_gets_a_bar_and_a_pipe_gets_none(bench: Bench, tmp_path: Path) -> None:
    # Given a lost row, and a command whose output goes into a pipe and whose errors go to a terminal
    bench.delivered()
    attempt, _ = bench.decided()
    bench.settle(attempt.row_id)
    bench.expect_findings(("lost", attempt.row_id))
    terminal, end = os.openpty()
    # When it runs
    command = [sys.executable, "-m", "outbox", "--log-level", "error", "audit", "--json"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read_to_the_end, terminal)  # a bar that is drawn for long fills any buffer
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=end, timeout=DEADLINE, check=False
            )
        finally:
            os.close(end)
    # Then the bar is on the terminal, and the pipe has whole lines of JSON
    shown = reading.result()
    kinds = [json.loads(line)["kind"] for line in done.stdout.decode().splitlines()]
    assert (done.returncode, kinds) == (1, ["lost", "counts"])
    assert "rows" in shown
    assert "100%" in shown


def read_to_the_end(terminal: int) -> str:
    """What a pseudo-terminal was sent, once nobody holds its other end."""
    pieces = []
    with suppress(OSError):  # how Linux says that it is the end
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode(errors="replace")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--last", "soon"), "--last"),
     (("--last", "1h", "--since", "2030-01-01T00:00Z"), "--last"),
     (("--until", "2030-01-01T00:00Z"), "--since"),
     (("--since", "yesterday"), "yesterday"),
     (("--since", "2030-01-01T00:00"), "time zone"),
     (("--since", "2030-01-01T00:00Z"), "is not before"),
     (("--expect-origin", "shop/0123456789abcdef"), "leave out the '/'"),
     (("--older-than", "old"), "--older-than")],
    ids=lambda it: " ".join(it) if isinstance(it, tuple) else "",
)  # fmt: skip
def test_wrong_use_is_told_in_words(
    sqlite_copies: Copies,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    named: str,
) -> None:
    # Given a database at head / When the command is used wrongly / Then the fault is named, and the exit code is 2
    monkeypatch.chdir(tmp_path)
    with sqlite_copies(tmp_path) as url:
        done = in_process(monkeypatch, capsys)("audit", "--database-url", url, *arguments)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
