"""The two READMEs show the same code and the same diagram; all documents lead to files that are there."""

import re
from pathlib import Path

import pytest

from outbox import lifecycle

ROOT = Path(__file__).parents[2]
NAMES = ("README.md", "README.zh-CN.md")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
_PATH = re.compile(r"`((?:outbox|relay|checkback|tests|benchmarks|migrations|examples)/[\w/.*-]+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def inline_code(text: str) -> list[str]:
    return sorted({" ".join(code.split()) for code in re.findall(r"`([^`]+)`", _FENCED.sub("", text))})


def test_both_show_the_same_blocks_of_code() -> None:
    # Given the fenced blocks of each README, with their languages
    english, chinese = (_FENCED.findall(text_of(name)) for name in NAMES)
    # Then there are some, and they are the same
    assert [language for language, _ in english].count("python") == 2
    assert english == chinese


def test_both_name_the_same_commands_settings_and_urls() -> None:
    english, chinese = (inline_code(text_of(name)) for name in NAMES)
    assert english == chinese


@pytest.mark.parametrize("name", NAMES)
def test_each_shows_the_diagram_of_the_code(name: str) -> None:
    # Given the lifecycle's tables / When they are drawn / Then each README shows the drawing where it says so
    assert f"<!-- lifecycle -->\n```mermaid\n{lifecycle.diagram()}\n```\n<!-- /lifecycle -->" in text_of(name)


def test_each_leads_to_the_other() -> None:
    assert "](README.zh-CN.md)" in text_of("README.md")
    assert "](README.md)" in text_of("README.zh-CN.md")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_that_are_there(name: str) -> None:
    assert [link for link in _LINK.findall(text_of(name)) if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_modules_that_documents_name_are_there(name: str) -> None:
    assert [path for path in _PATH.findall(text_of(name)) if not any(ROOT.glob(path.rstrip("/")))] == []
