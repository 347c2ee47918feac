"""``outbox doctor`` on a real broker with access control whose settings are all wrong: all are found, no secret is.

A broker's settings hold the passwords of its first user and of its inner client, and 5.4.0 gives them to every user who
can sign a request.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from outbox import migrate
from outbox.brokers.examiner import SETTINGS
from outbox.brokers.remoting.commands import Request
from outbox.identity import fresh_token
from outbox.settings import Settings, load
from outbox.store.database import Database
from outbox.store.identity import Identity
from outbox.wiring import open_broker, open_examiner
from tests.contracts.rig import message, prepare_one
from tests.integration import test_remoting_acl as acl
from tests.integration.commands import Command, Run, in_process
from tests.integration.test_doctor import wait_for_figures
from tests.services.require import require
from tests.services.rocketmq import RocketMQ
from tests.services.rocketmq.admin import Admin
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
DEADLINE: Final = 120.0
EXAMINER: Final = ("examiner", "examiner-secret-1234")
#: What ``docs/operations.md`` says that doctor needs.
EXAMINERS_RIGHTS: Final = {"Cluster:*": ["Get"], "Topic:*": ["Get", "Sub"], "Group:TOOLS_CONSUMER": ["Sub"]}
SECRETS: Final = (acl.ROOT[1], acl.INNER[1], acl.USER[1], EXAMINER[1])
#: One check a second after the half, then the broker gives up; no index; files for an hour.
WRONG: Final = {
    "messageIndexEnable": "false",
    "fileReservedTime": "1",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1,
    "transactionOpBatchInterval": 1000,
}
OF_SETTINGS: Final = {
    "message-index": "problem",
    "broker-retention": "warning",
    "check-horizon": "warning",
    "check-batch": "warning",
    "retention": "problem",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RocketMQ]:
    """A user with the rights of a service, and one with those of an examiner."""
    with require(lambda: RocketMQ(settings={**acl.SETTINGS, **WRONG}, connect=acl.as_root)) as started:
        acl.create_user(started, *acl.USER, acl.RIGHTS)
        acl.create_user(started, *EXAMINER, EXAMINERS_RIGHTS)
        yield started


@pytest.fixture
def settings(cluster: RocketMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A service that keeps its rows no longer than the broker asks: the command reads it from the environment."""
    values = {
        "database_url": f"sqlite:///{tmp_path / 'outbox.db'}",
        "broker_url": f"rocketmq://{cluster.namesrv}",
        "origin": f"origin-{fresh_token()}",
        "access_key": acl.USER[0],
        "secret_key": acl.USER[1],
        "check_horizon": "1",
        "retention": "2",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"OUTBOX_{name.upper()}", value)
    loaded = load()
    database = Database(loaded.database_url)
    migrate.upgrade(database)
    database.close()
    wait_for_figures(loaded)
    return loaded


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


def levels(run: Run) -> dict[str, str]:
    """Ids and levels of what is above a note."""
    findings: list[dict[str, Any]] = json.loads(run.out)
    return {it["id"]: it["level"] for it in findings if it["level"] in ("warning", "problem")}


def give_up_a_half(cluster: RocketMQ, settings: Settings) -> str:
    """Has the broker discard a half of this database; returns its key."""
    topic = f"topic-{fresh_token()}"
    cluster.create_topics([topic, f"{topic}-b"], queues=4)
    database = Database(settings.database_url)
    origin = f"{settings.service}/{Identity(database).database_id()}"
    database.close()
    key = f"order-{fresh_token()}"
    broker = open_broker(settings)
    prepare_one(broker, message(topic, key=key, properties={"outbox-origin": origin}))
    broker.close()
    return key


def as_user(monkeypatch: pytest.MonkeyPatch, name: str, secret: str) -> None:
    monkeypatch.setenv("OUTBOX_ACCESS_KEY", name)
    monkeypatch.setenv("OUTBOX_SECRET_KEY", secret)


def test_wrong_settings_and_discarded_halves_are_found(
    cluster: RocketMQ, settings: Settings, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a half that the broker gave up
    key = give_up_a_half(cluster, settings)
    as_user(monkeypatch, *EXAMINER)
    # When a user with the rights of an examiner looks, once the broker has given up
    expected = OF_SETTINGS | {"discarded-halves": "warning"}
    expect_soon(lambda: levels(command("doctor", "--json")) == expected, "all is found", within=DEADLINE)
    # Then the half is named by its key
    run = command("doctor")
    assert run.code == 1
    assert f"{key} for topic-" in run.out


def test_no_password_is_printed_or_kept(
    cluster: RocketMQ, settings: Settings, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker whose settings hold passwords, readable for any user
    connections = acl.as_root()
    raw = connections.ask(cluster.broker.url, Request.BROKER_CONFIG, {}).body.decode()
    connections.close()
    assert acl.ROOT[1] in raw
    assert acl.INNER[1] in raw
    # When it is examined, with every log line on
    with caplog.at_level(logging.DEBUG):
        runs = [command("--log-level", "debug", "doctor"), command("--log-level", "debug", "doctor", "--json")]
    written = "".join(run.out + run.err for run in runs) + caplog.text
    # Then the settings were read, and no secret is told, of theirs or of ours
    assert "messageIndexEnable=false" in written
    assert [secret for secret in SECRETS if secret in written] == []
    # And what the examiner keeps is what was asked for
    examiner = open_examiner(settings)
    assert examiner is not None
    (broker,) = examiner.masters()
    kept = examiner.settings(broker)
    examiner.close()
    assert set(kept) <= set(SETTINGS)
    assert [secret for secret in SECRETS if secret in "".join(kept.values())] == []


def refused(run: Run) -> list[str]:
    """What could not be read."""
    return [it["seen"] for it in json.loads(run.out) if it["id"] == "broker-readable" and it["level"] == "warning"]


def test_what_a_user_may_not_read_is_told_and_the_rest_is_judged(
    cluster: RocketMQ, settings: Settings, command: Command
) -> None:
    # Given the rights that the manual gives a relay; When it examines the broker
    run = command("doctor", "--json", "--topic", "payments")
    # Then topics and listeners could not be read, and the settings were judged
    assert [seen.split(":")[0] for seen in refused(run)] == [
        f"connections of producer group {settings.producer_group}",
        "topic payments",
    ]
    assert all("no permission to access" in seen for seen in refused(run))
    found: Mapping[str, str] = levels(run)
    assert found.items() >= OF_SETTINGS.items()


def test_a_wrong_secret_is_told(
    cluster: RocketMQ, settings: Settings, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a wrong secret; When the broker is examined
    as_user(monkeypatch, acl.USER[0], "a-wrong-secret")
    run = command("doctor", "--json")
    # Then each part says so, and the database is examined all the same
    assert levels(run) == {"broker-readable": "warning"}
    assert {seen.split(":")[0] for seen in refused(run)} >= {"settings", "runtime figures"}
    assert all("OUTBOX_SECRET_KEY" in seen for seen in refused(run))
    assert "sqlite-journal" in run.out
    assert "a-wrong-secret" not in run.out + run.err


def test_a_topics_type_can_be_changed_as_the_remedy_says(
    cluster: RocketMQ, settings: Settings, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a topic without a type, as an examiner sees it
    topic = f"topic-{fresh_token()}"
    cluster.create_topics([topic, f"{topic}-b"], queues=4)
    as_user(monkeypatch, *EXAMINER)
    assert levels(command("doctor", "--json", "--topic", topic))["topic-type"] == "warning"
    # When it is mended as it was told / Then it is found no more
    with Admin(cluster.namesrv, acl.as_root()) as admin:
        admin.create_topic(cluster.broker.url, topic, queues=4, attributes="+message.type=TRANSACTION")
    assert "topic-type" not in levels(command("doctor", "--json", "--topic", topic))
