"""Everything that ``outbox doctor`` looks at; the manual shows this list, and a test compares them."""

from typing import Final

from outbox.doctor import broker_subjects, database_subjects, row_subjects
from outbox.doctor.findings import Subject

SUBJECTS: Final[tuple[Subject, ...]] = tuple(
    value
    for module in (broker_subjects, database_subjects, row_subjects)
    for value in vars(module).values()
    if isinstance(value, Subject)
)


def as_markdown() -> str:
    """The list as the manual shows it."""
    lines = ["| id | means, if not ok | do |", "|---|---|---|"]
    return "\n".join(lines + [f"| `{it.id}` | {it.meaning} | {it.remedy} |" for it in SUBJECTS])
