"""The list of what is looked at: stable ids, and the same list in the manual."""

import re
from pathlib import Path

from outbox.doctor.findings import Finding, Level, Subject, alarms, summary
from outbox.doctor.subjects import SUBJECTS, as_markdown

ROOT = Path(__file__).parents[3]
IT = Subject("it", "what it means", "what to do")


def test_ids_are_kebab_case_and_unique() -> None:
    ids = [subject.id for subject in SUBJECTS]
    assert [it for it in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", it)] == []
    assert len(ids) == len(set(ids))


def test_every_subject_is_found_by_a_test() -> None:
    # Given the ids, and what the tests of this folder expect
    expected = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    # Then no subject is one that nothing provokes
    assert [it.id for it in SUBJECTS if f'"{it.id}"' not in expected] == []
    assert len(SUBJECTS) > 40


def test_the_manual_shows_the_list() -> None:
    manual = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert f"<!-- doctor -->\n{as_markdown()}\n<!-- /doctor -->" in manual


def test_only_what_is_not_ok_says_what_it_means() -> None:
    assert IT.ok("here", "fine") == Finding("it", Level.OK, "here", "fine")
    assert IT.problem("here", "broken") == Finding("it", Level.PROBLEM, "here", "broken", "what it means", "what to do")
    assert IT.judged("here", "fine", None) == IT.ok("here", "fine")
    assert IT.judged("here", "odd", Level.WARNING) == IT.warning("here", "odd")


def test_findings_are_counted_in_words() -> None:
    findings = [IT.ok("", ""), IT.ok("", ""), IT.note("", ""), IT.warning("", ""), *[IT.problem("", "")] * 2]
    assert summary(findings) == "2 ok, 1 note, 1 warning, 2 problems"


def test_warnings_and_problems_are_alarms() -> None:
    assert not alarms([IT.ok("", ""), IT.note("", "")])
    assert alarms([IT.ok("", ""), IT.warning("", "")])
    assert alarms([IT.problem("", "")])
