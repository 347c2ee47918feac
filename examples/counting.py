"""What a run counts at its end: what there should be, beside what there is."""

from dataclasses import dataclass

import sqlalchemy as sa

from outbox.lifecycle import open_states
from outbox.schema import outbox


@dataclass(frozen=True, slots=True)
class Line:
    """One figure."""

    service: str
    what: str
    expected: int
    seen: int

    def __str__(self) -> str:
        verdict = "exact" if self.expected == self.seen else f"WRONG by {self.seen - self.expected:+,}"
        return f"{self.service:15} {self.what:20} expected {self.expected:12,}  seen {self.seen:12,}  {verdict}"


@dataclass(frozen=True, slots=True)
class Report:
    """All figures at one moment, and how many messages are still owed."""

    lines: tuple[Line, ...]
    unpublished: int

    @property
    def exact(self) -> bool:
        """Whether every payment had each effect once."""
        return not self.unpublished and all(line.expected == line.seen for line in self.lines)

    @property
    def surplus(self) -> bool:
        """Whether an effect happened twice: no waiting can mend that."""
        return any(line.seen > line.expected for line in self.lines)


def unpublished(connection: sa.Connection) -> int:
    """Rows of the outbox whose messages are still owed."""
    owed = sa.select(sa.func.count()).select_from(outbox).where(outbox.c.state.in_(open_states()))
    return int(connection.execute(owed).scalar_one())
