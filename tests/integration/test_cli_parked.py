"""``outbox parked``: what a consumer could not take, on each database."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from outbox.brokers.source import Delivery
from outbox.consumer import Duplicate, Inbox, NoKey, Park, Processed
from outbox.store.database import Database
from tests.integration.commands import Command, in_process
from tests.integration.consumer.shop import keys_done, metadata, reasons, record
from tests.unit.consumer.fakes import delivery

SERVICE = """
from outbox.consumer import Inbox, MemoryInbox, Permanent
from tests.integration.consumer.shop import record

inbox = Inbox({url!r}, consumer="stock")
cached = MemoryInbox(inbox)
known = set()


@inbox.handler(topic="payments")
def on_paid(message, session):
    if message.key not in known:
        raise Permanent(f"no order {{message.key}}")
    record(message, session)
"""


@pytest.fixture
def run(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Commands in a folder where the service's module lies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parking_shop.py").write_text(SERVICE.format(url=migrated_url))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parking_shop", raising=False)
    yield in_process(monkeypatch, capsys)
    if module := sys.modules.get("parking_shop"):
        module.inbox.close()


@pytest.fixture
def engine(database: Database) -> Engine:
    metadata.create_all(database.engine)
    return database.engine


@pytest.fixture
def parked(run: Command, engine: Engine) -> list[Delivery]:
    """Two orders that are not known yet, and a message without a key."""
    inbox = import_module("parking_shop").inbox
    came = [delivery(keys=("a",)), delivery(keys=("b",)), delivery(keys=())]
    for each in came:
        outcome = inbox.process(each)
        assert isinstance(outcome, Park | NoKey)
        inbox.park(each, outcome.reason)
    return came


def test_parked_messages_are_listed_with_their_reasons(run: Command, parked: list[Delivery]) -> None:
    listed = json.loads(run("parked", "list", "parking_shop:inbox", "--json").out)
    assert [(row["id"], row["key"]) for row in listed] == [(1, "a"), (2, "b"), (3, None)]
    assert listed[0]["reason"] == "Permanent: no order a"
    assert "no order b" in run("parked", "list", "parking_shop:inbox").out


def test_a_retry_settles_what_has_become_possible(run: Command, engine: Engine, parked: list[Delivery]) -> None:
    parking_shop = import_module("parking_shop")
    # Given an order that is known by now
    parking_shop.known.add("a")
    # When all are tried again / Then that one has its effect, and the others stay, with exit code 1
    done = run("parked", "retry", "parking_shop:inbox", "--all")
    assert done.code == 1
    assert done.out.splitlines()[0] == "message 1: processed"
    assert "message 2: park: Permanent: no order b" in done.out
    assert keys_done(engine) == ["a"]
    assert len(reasons(engine)) == 2
    # And when the message comes again all the same / Then it is a duplicate
    assert parking_shop.inbox.process(parked[0]) == Duplicate()
    # And one that was tried already is named
    assert "there is no such message" in run("parked", "retry", "parking_shop:inbox", "1").out


def test_what_is_dropped_is_gone_unprocessed(run: Command, engine: Engine, parked: list[Delivery]) -> None:
    assert run("parked", "drop", "parking_shop:inbox", 2).code == 0
    assert run("parked", "drop", "parking_shop:inbox", 2).code == 1
    assert (len(reasons(engine)), keys_done(engine)) == (2, [])


def test_wrong_use_is_named(run: Command, parked: list[Delivery]) -> None:
    assert run("parked", "retry", "parking_shop:inbox").code == 2
    assert "name the Inbox itself" in run("parked", "list", "parking_shop:cached").err


def test_a_message_older_than_the_retention_is_processed_when_an_operator_says_so(engine: Engine) -> None:
    # Given a message that was parked since its effect may have been forgotten
    inbox = Inbox(engine, consumer="stock")
    inbox.handler(topic="payments")(record)
    old = delivery(keys=("old",), born_at=1.0)
    outcome = inbox.process(old)
    assert isinstance(outcome, Park)
    inbox.park(old, outcome.reason)
    # When it is tried again by hand / Then its age is forgiven
    (row,) = inbox.parked(10)
    assert inbox.retry(row["id"]) == Processed()
    assert keys_done(engine) == ["old"]
