"""Wrong use of the daemons' commands: one line that names what is wrong, exit code 2, no traceback."""

from pathlib import Path

import pytest

from outbox.consumer import RunnerSettings
from outbox.consumer.schedule import ORDERLY_DELAYS, RETRY_DELAYS
from outbox.errors import SettingsError
from outbox.settings import Settings
from tests.integration.commands import Command, in_process

SERVICE = """
from outbox.consumer import Inbox

away = Inbox("postgresql://app:secret@127.0.0.1:1/shop", consumer="stock")


@away.handler(topic="payments")
def on_paid(message, session): ...


number = 1
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Commands in an empty folder with no settings, where a service's modules lie."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"OUTBOX_{name.upper()}", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "daemons_shop.py").write_text(SERVICE)
    (tmp_path / "daemons_needy.py").write_text("import nowhere_to_be_found\n")
    return in_process(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("target", "named"),
    [("daemons_shop", "daemons_shop"),
     ("nowhere_at_all:inbox", "start it where nowhere_at_all can be imported"),
     ("daemons_needy:inbox", "'nowhere_to_be_found'; daemons_needy imports it: install it"),
     ("daemons_shop:nothing", "has no nothing"),
     ("daemons_shop:number", "not a consumer"),
     ("daemons_shop:away", "database cannot be used")],
)  # fmt: skip
def test_a_target_that_cannot_consume_is_named(run: Command, target: str, named: str) -> None:
    done = run("consume", target)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "url",
    ["kafka://host:9092", "rocketmq://", "rocketmq://host", "rocketmq://host:9876;other", "embedded:",
     "rocketmq://host:9876,other:9876", "rocketmq://host:98765", "rocketmq+grpc://host:98765"],
)  # fmt: skip
def test_a_broker_that_no_transport_reads_is_named(run: Command, url: str) -> None:
    # Given a database at head
    assert run("db", "upgrade").code == 0
    # When a daemon is given a wrong broker
    done = run("relay", "--origin", "orders", "--broker-url", url)
    # Then the setting is named
    assert (done.code, done.out) == (2, "")
    assert "OUTBOX_BROKER_URL" in done.err
    assert "Traceback" not in done.err


def test_a_consumer_makes_no_file_of_a_mistyped_name(run: Command, tmp_path: Path) -> None:
    service = SERVICE.replace("postgresql://app:secret@127.0.0.1:1/shop", f"sqlite:///{tmp_path / 'mistyped.db'}")
    (tmp_path / "daemons_mistyped.py").write_text(service)
    done = run("consume", "daemons_mistyped:away")
    assert done.code == 2
    assert "mistyped.db: there is no such file" in done.err
    assert not [*tmp_path.glob("mistyped.db*")]


def test_what_cannot_be_audited_needs_nothing_installed(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a host without the client of proxies
    def missing(_: Settings) -> None:
        raise SettingsError("pip install it")

    monkeypatch.setattr("outbox.cli.audit.open_broker", missing)
    assert run("db", "upgrade").code == 0
    # When rows are audited through a proxy / Then the way that works is told, and no other
    done = run("audit", "--origin", "orders", "--broker-url", "rocketmq+grpc://host:8081")
    assert done.code == 2
    assert "set OUTBOX_BROKER_URL to rocketmq://host:9876" in done.err


def test_a_fault_of_the_service_itself_is_not_hidden(run: Command, tmp_path: Path) -> None:
    # Given a module that fails while it is imported
    (tmp_path / "daemons_faulty.py").write_text("import os\nos.nothing_of_that_name\n")
    # When its inbox is asked for / Then its own error rises, with its own place
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        run("consume", "daemons_faulty:inbox")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), RunnerSettings(threads=4, retry_delays=RETRY_DELAYS)),
     (("--threads", 9), RunnerSettings(threads=9, retry_delays=RETRY_DELAYS)),
     (("--orderly",), RunnerSettings(threads=4, retry_delays=ORDERLY_DELAYS))],
)  # fmt: skip
def test_what_a_consumer_is_told_reaches_its_runner(
    run: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], expected: RunnerSettings
) -> None:
    # Given a consumer's command with its options
    told: list[RunnerSettings] = []

    def consume(*_: object, settings: RunnerSettings, **__: object) -> None:
        told.append(settings)

    monkeypatch.setattr("outbox.cli.consume.run", consume)
    # When it is run
    assert run("consume", "daemons_shop:away", *arguments).code == 0
    # Then its runner has them
    assert told == [expected]


def test_a_wrong_number_of_threads_is_named(run: Command) -> None:
    done = run("consume", "daemons_shop:away", "--threads", 0)
    assert done.code == 2
    assert "OUTBOX_THREADS" in done.err


def test_the_native_client_refuses_an_orderly_group(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a consumer that could work / When it asks for what its transport does not have / Then it is named
    url = "rocketmq+native://127.0.0.1:9876"
    monkeypatch.setattr("outbox.cli.consume.run", lambda _, opened, *__, **___: opened(["payments"], "stock"))
    done = run("consume", "daemons_shop:away", "--orderly", "--broker-url", url, "--origin", "orders")
    assert done.code == 2
    assert "OUTBOX_ORDERLY" in done.err
