"""The document about consumers names tests and strategies that are there."""

import re
from pathlib import Path

import outbox.consumer
from outbox.consumer import cached_inbox, redis_inbox

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "consumer-guarantees.md").read_text(encoding="utf-8")


def test_every_test_that_it_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    assert named
    assert named - there == set()


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:tests|docs|outbox)/[\w/.]+)`|\]\((?!https?:)([\w./-]+)", TEXT))
    paths = [ROOT / in_code if in_code else ROOT / "docs" / link for in_code, link in named]
    assert paths
    assert [path for path in paths if not path.exists()] == []


def test_every_strategy_has_its_place() -> None:
    public = {name for name in outbox.consumer.__all__ if name.endswith(("Inbox", "Consumer"))}
    public |= {cached_inbox.CachedInbox.__name__, redis_inbox.RedisInbox.__name__}
    assert {name for name in public if f"`{name}" not in TEXT} == set()
