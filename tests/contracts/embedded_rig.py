"""The embedded broker under the contract suite: one file per test, no server."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.brokers.base import Broker, Capabilities, Half
from outbox.brokers.embedded import BrokerTiming, EmbeddedBroker, EmbeddedInspector, EmbeddedSource
from outbox.brokers.source import Source
from tests.contracts.rig import Rig, Visible, message

#: Checks come after a tenth of a second, and never run out within a test.
FAST = BrokerTiming(transaction_timeout=0.1, check_interval=0.1, max_checks=10_000, poll_interval=0.01)


class EmbeddedRig:
    """Opens brokers and sources on one file and closes them."""

    capabilities = Capabilities(confirms=True, finds=True, ends_by_handle=True, check_scope="group")
    deadline = 60.0
    check_deadline = 60.0
    short_invisible = 0.3
    delays = (0.1, 5.0)
    exclusive = True
    orderly = True

    def __init__(self, folder: Path) -> None:
        self._path = folder / "broker.db"
        self._folder = folder
        self._inspector = EmbeddedInspector(self._path)
        self._opened: list[Broker | Source] = []
        self._numbers = itertools.count()

    def open(self, group: str) -> Broker:
        """A broker on the file."""
        return self._keep(EmbeddedBroker(self._path, group, FAST))

    def away(self, group: str) -> Broker:
        """A broker on a file in a folder that does not exist."""
        return self._keep(EmbeddedBroker(self._folder / "missing" / "broker.db", group, FAST))

    def source(self, topic: str, group: str, invisible: float) -> Source:
        """A source on the file."""
        source = EmbeddedSource(self._path, group, [topic], invisible=invisible, settings=FAST)
        self._opened.append(source)
        return source

    def orderly_source(self, topic: str, group: str, invisible: float) -> Source:
        """A source that keeps order."""
        source = EmbeddedSource(self._path, group, [topic], invisible=invisible, settings=FAST, orderly=True)
        self._opened.append(source)
        return source

    def fresh_topic(self) -> str:
        """Any name: topics come to be by sending."""
        return f"topic-{next(self._numbers)}"

    def fresh_plain_topic(self) -> str:
        """As ``fresh_topic``: topics take both kinds."""
        return self.fresh_topic()

    def fresh_timed_topic(self) -> str:
        """As ``fresh_topic``: topics take both kinds."""
        return self.fresh_topic()

    def fresh_group(self) -> str:
        """Any name."""
        return f"group-{next(self._numbers)}"

    def visible(self, topic: str) -> list[Visible]:
        """Read past all groups."""
        return [
            Visible(seen.unique_id, seen.key, seen.tag, seen.properties, seen.body, seen.queue)
            for seen in self._inspector.visible(topic)
        ]

    def nowhere(self, half: Half) -> Half:
        """A position that the file has not reached."""
        store, _, position = half.handle.rpartition(":")
        return replace(half, handle=f"{store}:{int(position) + 1_000_000}")

    def close(self) -> None:
        """Closes what the test opened."""
        for opened in self._opened:
            opened.close()
        self._inspector.close()

    def _keep(self, broker: EmbeddedBroker) -> Broker:
        self._opened.append(broker)
        return broker


@pytest.fixture
def embedded_rig(tmp_path: Path) -> Iterator[Rig]:
    """A new file for each test; the store is older than whatever the test decides."""
    rig = EmbeddedRig(tmp_path)
    rig.open("first").send([message("first")], timeout=60)
    yield rig
    rig.close()
