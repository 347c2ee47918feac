"""What a check says: about which subject, how bad, and what was seen."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from outbox.words import counted


class Level(StrEnum):
    """How bad a finding is, from the best on."""

    OK = "ok"
    #: Worth knowing; nothing to mend for most.
    NOTE = "note"
    #: It works, and will hurt: mend it soon.
    WARNING = "warning"
    #: A guarantee does not hold, or nothing works.
    PROBLEM = "problem"


#: Levels with which ``outbox doctor`` ends with exit code 1.
ALARMING = frozenset((Level.WARNING, Level.PROBLEM))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    #: Stable, kebab-case; the same in every version.
    id: str
    level: Level
    #: Which broker, topic, group, table or "database".
    about: str
    seen: str
    #: What it means and how to mend it; "" where all is well.
    meaning: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that is looked at: its stable id, what it means where it is not as it should be, and how to mend it."""

    id: str
    meaning: str
    remedy: str

    def ok(self, about: str, seen: str) -> Finding:
        """It is as it should be."""
        return Finding(self.id, Level.OK, about, seen)

    def note(self, about: str, seen: str) -> Finding:
        """It is worth knowing."""
        return Finding(self.id, Level.NOTE, about, seen, self.meaning, self.remedy)

    def warning(self, about: str, seen: str) -> Finding:
        """It will hurt."""
        return Finding(self.id, Level.WARNING, about, seen, self.meaning, self.remedy)

    def problem(self, about: str, seen: str) -> Finding:
        """It breaks a guarantee, or the work."""
        return Finding(self.id, Level.PROBLEM, about, seen, self.meaning, self.remedy)

    def judged(self, about: str, seen: str, worst: Level | None) -> Finding:
        """At ``worst``; None: all is well."""
        if worst is None or worst is Level.OK:
            return self.ok(about, seen)
        return Finding(self.id, worst, about, seen, self.meaning, self.remedy)


def summary(findings: Iterable[Finding]) -> str:
    """How many there are of each level, in words."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(
        f"{counts[level]} {level}" if level is Level.OK else counted(counts[level], level)
        for level in Level
        if counts[level]
    )


def alarms(findings: Iterable[Finding]) -> bool:
    """Whether one of them is a warning or a problem."""
    return any(finding.level in ALARMING for finding in findings)
