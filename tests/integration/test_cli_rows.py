"""The operator's commands: what they print, what they change, how wrong use is told."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from outbox import migrate, revision
from outbox.cli import present
from outbox.lifecycle import State
from outbox.message import Mode
from outbox.settings import Settings
from outbox.store.claims import Claims
from outbox.store.clock import utc_after
from outbox.store.database import Database
from outbox.store.heartbeats import Heartbeats
from outbox.store.identity import Identity
from tests.integration.commands import Command, in_process
from tests.integration.rows import added, column, force, state_of

DAY = 86400


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but the test's own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"OUTBOX_{name.upper()}", raising=False)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_url: str, in_an_empty_folder: None
) -> Command:
    """A command on the test's database."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", migrated_url)
    return in_process(monkeypatch, capsys)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command that brings its own database URL, or none."""
    return in_process(monkeypatch, capsys)


def parsed(run: Command, *arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_status_counts_the_rows(run: Command, database: Database) -> None:
    # Given rows in two states, and a listener
    first, _ = added(database, 2)
    force(database, first, state=State.DEAD)
    Heartbeats(database).beat("listener-1", 30)
    # When the status is asked for / Then people and programs read the same
    status = parsed(run, "status")
    assert status["rows"] == {"pending": 1, "committed": 0, "delivered": 0, "cancelled": 0, "dead": 1}
    seconds = {"oldest_due_seconds", "oldest_unsettled_seconds", "heartbeat_seconds"}
    assert set(status) == {"rows", "estimated", "held_lanes", *seconds}
    assert set(status["heartbeat_seconds"]) == {"listener-1"}
    text = run("status").out
    assert re.search(r"^pending +1$", text, re.MULTILINE)
    assert parsed(run, "status", "--exact")["rows"] == status["rows"]
    assert "listener listener-1: heard" in text


def test_list_shows_rows_without_cutting_them(run: Command, database: Database) -> None:
    # Given a key as long as they get, with everything that markup and terminals might misread
    odd = "[red]:smile: 订单\u202e" + "k" * 200
    (first,) = added(database)
    force(database, first, key=odd, reason="said\x1b[31m no")
    added(database, topic="refunds")
    # When rows are listed into a pipe
    done = run("list", "--topic", "payments")
    # Then each is one clean line
    lines = done.out.splitlines()
    assert (done.code, len(lines)) == (0, 2)
    assert "[red]:smile: 订单\\u202e" + "k" * 200 in lines[1]
    assert "\x1b" not in done.out
    assert all(line == line.rstrip() for line in lines)


def test_list_speaks_json_with_the_columns_names(run: Command, database: Database) -> None:
    (row_id,) = added(database)
    force(database, row_id, created_at=datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))
    (row,) = parsed(run, "list", "--state", "pending", "--key", column(database, row_id, "key"))
    assert row["id"] == row_id
    assert row["created_at"] == "2030-01-02T03:04:05.678901Z"
    assert set(row) == {
        "id", "topic", "key", "state", "mode", "attempts", "failures", "reason", "created_at", "available_at",
        "decided_at", "delivered_at", "presumed", "lane", "open_lane", "parked",
    }  # fmt: skip
    assert parsed(run, "list", "--state", "dead") == []


def test_list_says_that_more_rows_follow(run: Command, database: Database) -> None:
    ids = added(database, 3)
    done = run("list", "--limit", 2)
    assert f"--after {ids[1]}" in done.err
    assert [row["id"] for row in parsed(run, "list", "--after", ids[1])] == [ids[2]]


@pytest.mark.parametrize(
    ("payload", "shown", "encoding", "truncated"),
    [("ü 1".encode(), "ü 1", "utf-8", False), (b"\xff\x00", "ff00", "hex", False),
     (b"x" * 5000, "x" * present.PREVIEW_CHARACTERS, "utf-8", True),
     (b"\xff" * 5000, "ff" * present.PREVIEW_BYTES, "hex", True)],
    ids=["text", "binary", "long text", "long binary"],
)  # fmt: skip
def test_show_previews_the_payload(
    run: Command, database: Database, payload: bytes, shown: str, encoding: str, truncated: bool
) -> None:
    (row_id,) = added(database, payload=payload, headers={"a": "b"})
    row = parsed(run, "show", row_id)
    assert (row["payload"], row["payload_encoding"], row["payload_truncated"]) == (shown, encoding, truncated)
    assert (row["payload_bytes"], row["headers"], row["state"]) == (len(payload), {"a": "b"}, "pending")
    text = run("show", row_id)
    assert re.search(rf"^id +{row_id}$", text.out, re.MULTILINE)
    assert shown in text.out
    assert len(text.out) < 5000


def test_show_moves_no_cursor(run: Command, database: Database) -> None:
    (row_id,) = added(database, payload=b"\x1b[2J\x9b".replace(b"\x9b", "\x9b".encode()))
    assert "\\x1b[2J\\x9b" in run("show", row_id).out


def test_requeue_and_cancel_tell_of_each_row(run: Command, database: Database) -> None:
    # Given rows of which one is dead and one delivered
    pending, dead, delivered = added(database, 3)
    force(database, dead, state=State.DEAD)
    force(database, delivered, state=State.DELIVERED)
    # When the right one is requeued / Then it is said
    done = run("requeue", dead)
    assert (done.code, done.out) == (0, f"row {dead}: requeued\n")
    # When the others are / Then each says why not
    done = run("requeue", delivered, pending, 10**15)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        f"row {delivered} is delivered: only cancelled or dead rows can be requeued",
        f"row {pending} is pending: only cancelled or dead rows can be requeued",
        f"row {10**15}: there is no such row",
    ]
    # When they are cancelled / Then the same holds
    done = run("cancel", pending, delivered, "--reason", "stock is gone")
    assert (done.code, done.out) == (1, f"row {pending}: cancelled\n")
    assert done.err == f"row {delivered} is delivered: only pending rows can be cancelled\n"
    assert column(database, pending, "reason") == "stock is gone"


def test_cancel_says_why_a_plain_message_cannot_be_called_back(run: Command, database: Database) -> None:
    (row_id,) = added(database)
    force(database, row_id, mode=Mode.PLAIN)
    Claims(database).claim(1, 1, lease=30)
    done = run("cancel", row_id)
    assert done.code == 1
    assert done.err.startswith(f"row {row_id} is a plain message, and an attempt is under way or had no outcome: ")
    assert done.err.endswith("Z on\n")


def test_a_bulk_requeue_takes_dead_rows_and_cancelled_ones_by_name_only(run: Command, database: Database) -> None:
    # Given dead and cancelled rows of two topics
    payments, refunds = added(database, 3), added(database, 2, topic="refunds")
    for row_id in [*payments[:2], refunds[0]]:
        force(database, row_id, state=State.DEAD)
    for row_id in (payments[2], refunds[1]):
        force(database, row_id, state=State.CANCELLED)
    # When they are requeued by topic, then all, then by state
    assert run("requeue", "--state", "dead", "--topic", "payments").out == "requeued 2 rows\n"
    assert run("requeue", "--all").out == "requeued 1 row\n"
    assert state_of(database, payments[2]) is State.CANCELLED
    assert run("requeue", "--state", "cancelled").out == "requeued 2 rows\n"
    # Then nothing is left to be requeued
    assert run("requeue", "--all").out == "requeued 0 rows\n"


def test_a_bulk_requeue_is_chosen_by_reason_and_age(run: Command, database: Database) -> None:
    # Given dead rows that were refused for different reasons, one of which was added long ago
    illegal, busy, old = added(database, 3)
    for row_id, reason in ((illegal, "code 13: 100% illegal"), (busy, "code 2: busy"), (old, "code 2: busy")):
        force(database, row_id, state=State.DEAD, reason=reason)
    force(database, old, created_at=utc_after(-7200))
    # When they are listed and requeued by reason and age; Then those that fulfil all of it are meant, signs and all
    listed = json.loads(run("list", "--json", "--state", "dead", "--reason", "0% ill").out)
    assert [row["id"] for row in listed] == [illegal]
    assert run("requeue", "--reason", "busy", "--older-than", "1h").out == "requeued 1 row\n"
    assert [state_of(database, it) for it in (illegal, busy, old)] == [State.DEAD, State.DEAD, State.PENDING]
    assert run("requeue", "--reason", "nothing of the kind").out == "requeued 0 rows\n"
    assert run("requeue", "--older-than", "1h").out == "requeued 0 rows\n"
    assert run("requeue", "--older-than", "0s", "--topic", "payments").out == "requeued 2 rows\n"
    assert run("requeue", "--older-than", "soon").code == 2


def test_a_row_whose_message_may_be_visible_is_requeued_only_when_that_is_said(
    run: Command, database: Database
) -> None:
    # Given a row that was refused, and one that nobody can tell the outcome of
    refused, doubtful = added(database, 2)
    force(database, refused, state=State.DEAD, reason="code 13")
    force(database, doubtful, state=State.DEAD, reason="outcome unknown: files gone")
    # When all are requeued, and when it is named / Then it stays, and the remedy is told
    assert run("requeue", "--all").out == "requeued 1 row\n"
    done = run("requeue", doubtful)
    assert (done.code, done.out) == (1, "")
    assert "--even-if-visible" in done.err
    assert state_of(database, doubtful) is State.DEAD
    # When the operator says so / Then it is
    assert run("requeue", "--even-if-visible", doubtful).code == 0
    assert state_of(database, doubtful) is State.PENDING


def test_purge_deletes_old_rows_and_keeps_dead_ones(run: Command, database: Database) -> None:
    old, middle, dead = added(database, 3)
    for row_id, age in ((old, 8 * DAY), (middle, 2 * DAY)):
        force(database, row_id, state=State.DELIVERED, created_at=utc_after(-age), delivered_at=utc_after(-age))
    force(database, dead, state=State.DEAD, created_at=utc_after(-99 * DAY), available_at=utc_after(-99 * DAY))
    assert run("purge").out == "deleted 1 row\n"
    assert run("purge", "--older-than", "36h").out == "deleted 1 row\n"
    assert [row["id"] for row in parsed(run, "list")] == [dead]


def test_purge_deletes_dead_rows_where_their_age_is_named(run: Command, database: Database) -> None:
    # Given a dead row that is 40 days old, and one of 20
    old, young = added(database, 2)
    for row_id, days in ((old, 40), (young, 20)):
        at = utc_after(-days * DAY)
        force(database, row_id, state=State.DEAD, created_at=at, available_at=at)
    # When dead rows are purged as well; Then only as far as it was said
    assert run("purge").out == "deleted 0 rows\n"
    assert run("purge", "--dead-older-than", "30d").out == "deleted 1 row\n"
    assert state_of(database, young) is State.DEAD


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("list", "--state", "sent"), "sent"),
     (("list", "--limit", "0"), "--limit"),
     (("show", "first"), "integer"),
     (("show", "0"), "ID"),
     (("show", "9" * 30), "ID"),
     (("show", "12345"), "row 12345: there is no such row"),
     (("requeue",), "--all"),
     (("requeue", "1", "--all"), "--all"),
     (("requeue", "--state", "delivered"), "delivered"),
     (("cancel",), "ID"),
     (("purge", "--older-than", "soon"), "soon"),
     (("purge", "--older-than", "10m"), "10m"),
     (("purge", "--dead-older-than", "10m"), "--dead-older-than"),
     (("purge", "--older-than", "-5"), "-5"),
     (("list", "--key", "k\udcff"), "UTF-8"),
     (("db", "sql", "--dialect", "oracle"), "oracle")],
    ids=lambda it: ascii(" ".join(it))[:40] if isinstance(it, tuple) else "",
)  # fmt: skip
def test_wrong_use_is_told_in_words(anywhere: Command, arguments: tuple[str, ...], named: str) -> None:
    # Given a database at head
    assert anywhere("db", "upgrade").code == 0
    # When a command is used wrongly
    done = anywhere(*arguments)
    # Then the exit code is 2, the fault is named, and nobody sees a traceback
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("url", "named"),
    [("postgresql://user:secret@127.0.0.1:1/shop", "user:***@127.0.0.1:1"),
     ("mysql://user:secret@127.0.0.1:1/shop", "user:***@127.0.0.1:1"),
     ("sqlite:////proc/nowhere/outbox.db", "/proc/nowhere"),
     ("oracle://user:secret@127.0.0.1/shop", "oracle"),
     ("mysql+nodriver://user:secret@127.0.0.1/shop", "mysql+nodriver"),
     ("sqlite+aiosqlite:///there.db", "asynchronous"),
     ("postgresql://user:secret@127.0.0.1:port/shop", "database URL"),
     ("nonsense", "database URL")],
)  # fmt: skip
@pytest.mark.parametrize("command", [("status",), ("requeue", "--all"), ("db", "upgrade")], ids=" ".join)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    anywhere: Command, command: tuple[str, ...], url: str, named: str
) -> None:
    done = anywhere(*command, "--database-url", url)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err


def test_a_server_that_is_away_is_told_in_one_line_with_what_to_do(anywhere: Command) -> None:
    # Given a server that does not listen, of which the driver speaks in two lines
    url = "postgresql://bob@127.0.0.1:1/shop"
    # When a command needs it
    done = anywhere("status", "--database-url", url)
    # Then it names setting, server and remedy in one line
    assert done.code == 2
    assert re.fullmatch(
        r"outbox: OUTBOX_DATABASE_URL: cannot use postgresql\S+/shop: .*; start it, or correct the URL\n", done.err
    )


def test_a_file_that_is_no_database_is_named(anywhere: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database\n" * 1000)
    done = anywhere("status", "--database-url", f"sqlite:///{tmp_path / 'notes.txt'}")
    assert done.code == 2
    assert "notes.txt" in done.err


def test_without_a_schema_every_command_names_the_remedy(anywhere: Command) -> None:
    for command in ("status", "list", "purge"):
        done = anywhere(command)
        assert (done.code, done.out) == (2, "")
        assert "outbox db upgrade" in done.err


def test_db_check_and_upgrade_tell_the_revision(anywhere: Command) -> None:
    # Given no schema / When it is checked, made and checked again
    missing = anywhere("db", "check")
    made = anywhere("db", "upgrade")
    there = anywhere("db", "check")
    again = anywhere("db", "upgrade")
    # Then the first check finds something, and the second does not
    head = revision.head()
    assert (missing.code, made.code, there.code, again.code) == (1, 0, 0, 0)
    assert "outbox db upgrade" in missing.err
    assert made.out == f"schema at revision {head} (before: none)\n"
    assert there.out.startswith(f"schema at revision {head}")
    assert again.out == f"schema at revision {head}\n"


def test_db_sql_follows_the_settings_or_the_flag(anywhere: Command) -> None:
    assert anywhere("db", "sql").out == migrate.sql("sqlite")
    assert anywhere("db", "sql", "--database-url", "mariadb://u@h/d").out == migrate.sql("mysql")
    assert anywhere("db", "sql", "--dialect", "postgresql").out == migrate.sql("postgresql")


def test_db_sql_of_listed_databases_is_that_of_the_one_that_is_named(
    anywhere: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given databases of two kinds
    urls = {"east": "postgresql://east/d", "west": "mysql://west/d"}
    listed = [f'[[databases]]\nname = "{name}"\nurl = "{url}"\n' for name, url in urls.items()]
    (tmp_path / "outbox.toml").write_text("".join(listed))
    monkeypatch.chdir(tmp_path)
    # When the DDL is asked for / Then nobody guesses which is meant
    done = anywhere("db", "sql")
    assert (done.code, done.out) == (2, "")
    assert "choose one with --database: east, west" in done.err
    assert anywhere("db", "sql", "--database", "west").out == migrate.sql("mysql")


def test_db_adopt_gives_a_copy_an_identity_of_its_own(run: Command, migrated_url: str) -> None:
    # Given a database that is a copy of another
    database = Database(migrated_url)
    before = Identity(database).database_id()
    # When it is adopted without a yes, Then nothing happens
    refused = run("db", "adopt")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert Identity(database).database_id() == before
    # When it is adopted, Then it is another database from now on
    done = run("db", "adopt", "--yes")
    after = Identity(database).database_id()
    database.close()
    assert done.code == 0
    assert after != before
    assert after in done.out


def test_the_installed_command_reports_wrong_use_in_one_line(tmp_path: Path) -> None:
    # Given the command as a shell runs it
    code = "import sys; sys.argv[0] = 'outbox'; from outbox.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    # When the database is missing
    command = [sys.executable, "-c", code, "status"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    # Then it ends with 2 and one line, and a SQLite file whose name may be mistyped is not made
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"outbox: \.outbox/outbox\.db: there is no such file: .* `outbox db upgrade`.*\n", done.stderr)
    assert not (tmp_path / ".outbox" / "outbox.db").exists()


def test_a_database_without_the_tables_is_told_so(anywhere: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    done = anywhere("status", "--database-url", f"sqlite:///{tmp_path}/empty.db")
    assert done.code == 2
    assert done.err == (
        f"outbox: the outbox tables are missing from sqlite:///{tmp_path}/empty.db: run `outbox db upgrade` with it as "
        "OUTBOX_DATABASE_URL, --database-url or --database\n"
    )


def test_the_version_is_told(anywhere: Command) -> None:
    done = anywhere("--version")
    assert (done.code, done.out) == (0, f"rocketmq-outbox {version('rocketmq-outbox')}\n")


def test_lanes_are_listed_and_those_that_are_held_stand_in_the_status(run: Command, database: Database) -> None:
    # Given a lane whose head is dead, and a row elsewhere
    head, follower = added(database, 2, lane="order-42")
    added(database)
    force(database, head, state=State.DEAD, reason="illegal message")
    # When somebody looks; Then the lane shows
    assert [row["id"] for row in parsed(run, "list", "--lane", "order-42")] == [head, follower]
    assert "order-42" in run("list").out
    held = [{"topic": "payments", "lane": "order-42", "id": head, "reason": "illegal message"}]
    assert parsed(run, "status")["held_lanes"] == held
    assert f"lane payments/order-42: held by dead row {head}: requeue it or cancel it" in run("status").out
    assert parsed(run, "show", follower)["lane"] == "order-42"


def test_cancelling_a_dead_row_lets_its_lane_go_on(run: Command, database: Database) -> None:
    # Given a held lane whose follower is parked
    head, follower = added(database, 2, lane="order-42")
    force(database, head, state=State.DEAD)
    force(database, follower, parked=True)
    # When the dead row is cancelled; Then it stays dead, and its lane goes on
    done = run("cancel", head)
    assert (done.code, done.out) == (0, f"row {head}: stays dead, its lane goes on\n")
    assert (state_of(database, head), column(database, follower, "parked")) == (State.DEAD, False)
    # And it comes back only out of order
    refused = run("requeue", head)
    assert refused.code == 1
    assert "--out-of-order" in refused.err
    everything = run("requeue", "--all")
    assert (everything.code, everything.out) == (0, "requeued 0 rows\n")
    assert "1 row left alone" in everything.err
    assert run("requeue", head, "--out-of-order").out == f"row {head}: requeued\n"
    assert run("cancel", head).out == f"row {head}: cancelled\n"
    assert run("requeue", "--state", "cancelled", "--out-of-order").out == "requeued 1 row\n"
