"""Several databases served by one relay process, each by itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from outbox.brokers.embedded import EmbeddedInspector
from outbox.lifecycle import State
from outbox.store.database import Database
from tests.integration.commands import Command, in_process
from tests.integration.rows import added, state_of
from tests.integration.templates import migrated
from tests.probes import got, probed
from tests.services.ports import free_port
from tests.waiting import expect_soon

#: Generous: the machine may be busy.
DEADLINE = 120.0

FILE = """
broker_url = "embedded:broker.db"
origin = "shop"
health_host = "127.0.0.1"
health_port = {port}

[[databases]]
name = "east"
url = "sqlite:///east.db"

[[databases]]
name = "west"
url = "sqlite:///west.db"
origin = "shop-west"

[[databases]]
name = "north"
url = "sqlite:///north.db"
"""


@pytest.fixture
def port(tmp_path: Path) -> int:
    """Where the daemons of ``tmp_path`` answer probes."""
    number = free_port()
    (tmp_path / "outbox.toml").write_text(FILE.format(port=number))
    return number


@pytest.fixture
def east(tmp_path: Path) -> Iterator[Database]:
    """A database at head."""
    database = Database(migrated(f"sqlite:///{tmp_path}/east.db"))
    yield database
    database.close()


@pytest.fixture
def west(tmp_path: Path) -> Iterator[Database]:
    """Another one."""
    database = Database(migrated(f"sqlite:///{tmp_path}/west.db"))
    yield database
    database.close()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Any]:
    """Starts ``outbox …`` in ``tmp_path``; ends all that still run."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        log = (tmp_path / f"{len(started)}.log").open("wb")
        command = [sys.executable, "-m", "outbox", *arguments]
        with log:
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def ready(port: int, name: str) -> bool:
    return bool(probed(port, "/readyz")[1].get("databases", {}).get(name, {}).get("ready"))


def trouble(port: int, name: str) -> str:
    """What a database's loop died of; "": nothing yet."""
    told = probed(port, "/readyz")[1].get("databases", {}).get(name, {})
    return str(told.get("loops", {}).get(name, {}).get("error", ""))


def shipped(metrics: Sequence[str], name: str) -> float:
    """Rows that were committed, also those that a relay which stood still meanwhile left to its reconciler."""
    counters = tuple(
        f'outbox_{counter}_total{{database="{name}"}} ' for counter in ("delivered_rows", "unconfirmed_commits")
    )
    return sum(float(line.split()[-1]) for line in metrics if line.startswith(counters))


def test_one_that_is_away_does_not_touch_the_others(
    tmp_path: Path, port: int, east: Database, west: Database, daemons: Any
) -> None:
    # Given three databases, one of which has no tables
    rows = [(east, added(east, 20)), (west, added(west, 20))]
    relay = daemons("relay")
    # When one relay serves them; Then the others' rows are shipped
    for database, ids in rows:
        delivered = lambda database=database, ids=ids: all(state_of(database, it) is State.DELIVERED for it in ids)  # noqa: E731
        expect_soon(delivered, "the rows are delivered", within=DEADLINE)
    # And probes tell which one is the trouble
    expect_soon(lambda: ready(port, "east") and ready(port, "west"), "two are ready", within=DEADLINE)
    expect_soon(lambda: "outbox db upgrade" in trouble(port, "north"), "the third one tells", within=DEADLINE)
    status, told = probed(port, "/readyz")
    assert status == 503
    assert not told["databases"]["north"]["ready"]
    assert probed(port, "/livez")[0] == 200
    # And scrapers which rows are whose: what was shipped is counted a moment after the rows say so
    figures = {
        f'outbox_rows{{database="east",state="{State.DELIVERED}"}} 20',
        'outbox_oldest_due_seconds{database="west"} 0',
    }

    def counted() -> bool:
        lines = got(port, "/metrics")[2].splitlines()
        return figures <= set(lines) and shipped(lines, "west") == 20

    expect_soon(counted, "all is counted", within=DEADLINE)
    # When that is mended; Then it is served without a restart
    north = Database(migrated(f"sqlite:///{tmp_path}/north.db"))
    (late,) = added(north)
    expect_soon(lambda: state_of(north, late) is State.DELIVERED, "the late row is delivered", within=DEADLINE)
    expect_soon(lambda: probed(port, "/readyz")[0] == 200, "all are ready", within=DEADLINE)
    north.close()
    # When it is told to stop; Then it does, in good order
    relay.send_signal(signal.SIGTERM)
    assert relay.wait(DEADLINE) == 0


def open_halves(folder: Path) -> list[Any]:
    """The halves that wait at the embedded broker."""
    with EmbeddedInspector(folder / "broker.db") as inspector:
        return list(inspector.open_halves())


def test_checks_of_databases_that_share_a_connection_are_answered_from_their_own(
    tmp_path: Path, port: int, east: Database, west: Database, daemons: Any
) -> None:
    # Given two databases of one producer group, whose relay died between half and decision
    both = FILE.format(port=port).split('[[databases]]\nname = "north"')[0]
    settings = (
        'group = "outbox-all"\nlease = 3\nsend_timeout = 1\ncommit_window = 1\ncheck_timeout = 1\ncheck_interval = 1\n'
    )
    (tmp_path / "outbox.toml").write_text(settings + both)
    (in_east,), (in_west,) = added(east), added(west)
    for name, database in (("east", east), ("west", west)):
        environment = {**os.environ, "OUTBOX_TEST_FAULT": "relay.before_decide=kill", "OUTBOX_DATABASE": name}
        before = len(open_halves(tmp_path))

        def died_with_a_half(environment: dict[str, str] = environment, before: int = before) -> bool:
            """It dies as well where it came too late to store one; the next one begins anew."""
            died = subprocess.run(
                [sys.executable, "-m", "outbox", "relay", "--no-checkback"],
                cwd=tmp_path, env=environment, capture_output=True, timeout=DEADLINE, check=False,
            )  # fmt: skip
            assert died.returncode == -signal.SIGKILL, died.stderr
            return len(open_halves(tmp_path)) > before

        expect_soon(died_with_a_half, "a half is left", within=DEADLINE)
        assert {state_of(database, it) for it in ((in_east,) if name == "east" else (in_west,))} == {State.PENDING}
    # When a check-back alone serves both; Then each half is committed by the word of its own database
    daemons("checkback")
    for database, row_id in ((east, in_east), (west, in_west)):
        finished = lambda database=database, row_id=row_id: state_of(database, row_id) is State.DELIVERED  # noqa: E731
        expect_soon(finished, "the half is adopted", within=DEADLINE)
    expect_soon(lambda: probed(port, "/readyz")[0] == 200, "it is ready", within=DEADLINE)


@pytest.fixture
def run(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Commands in the folder of these databases."""
    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return in_process(monkeypatch, capsys)


def test_commands_are_about_the_database_that_is_named(run: Command, east: Database, west: Database) -> None:
    # Given a row in one of them
    (row_id,) = added(west)
    # When commands name it; Then they are about it
    assert json.loads(run("status", "--json", "--database", "west").out)["rows"][State.PENDING] == 1
    assert json.loads(run("status", "--json", "--database", "east").out)["rows"][State.PENDING] == 0
    assert "database: west" in run("status", "--database", "west").out
    assert run("cancel", row_id, "--database", "west").code == 0
    assert state_of(west, row_id) is State.CANCELLED
    assert run("requeue", row_id, "--database", "west").code == 0
    assert run("show", row_id, "--database", "east").code == 2
    doctor = json.loads(run("doctor", "--json", "--database", "east").out)
    assert any(it["id"] == "database-reachable" for it in doctor)
    # When none is named; Then each says which there are
    for command in ("status", "list", "doctor", "audit"):
        done = run(command)
        assert done.code == 2
        assert "--database: east, west, north" in done.err


def test_health_asks_the_daemon_of_this_host(
    run: Command, east: Database, west: Database, port: int, daemons: Any
) -> None:
    # Given no daemon, Then the command says so
    assert run("health").code == 2
    # When there is one that is alive and not ready
    daemons("relay")
    expect_soon(lambda: ready(port, "east"), "one is ready", within=DEADLINE)
    # Then it tells both
    assert run("health", "--live").code == 0
    done = run("health")
    assert done.code == 1
    assert json.loads(done.out)["databases"]["east"]["ready"]
