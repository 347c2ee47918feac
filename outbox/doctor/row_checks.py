"""From the figures of the outbox to findings: pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from outbox.doctor import row_subjects as subject
from outbox.doctor.findings import Finding, Level
from outbox.lifecycle import State, open_states
from outbox.store.examined_rows import RowFacts
from outbox.words import counted

OUTBOX: Final = "outbox"
#: Seconds: the age of due rows from which nobody works, or too few do.
LATE: Final = 60.0
#: Seconds: the age from which an open row is tried in vain, and a decision cannot be confirmed.
LONG: Final = 300.0
#: Characters of a reason that are shown.
_REASON: Final = 80


def of_origin(service: str, database_ids: Sequence[str]) -> Iterator[Finding]:
    """Whose halves this database knows for its own."""
    if len(database_ids) == 1:
        yield subject.ORIGIN.ok(OUTBOX, f"{service}/{database_ids[0]}")
    else:
        yield subject.ORIGIN.problem(OUTBOX, f"{len(database_ids)} identities: {', '.join(database_ids) or 'none'}")


def of_rows(facts: RowFacts) -> Iterator[Finding]:
    """Rows that need somebody."""
    late = f"oldest due row: {facts.oldest_due:.1f} s"
    yield subject.ROWS_LATE.judged(OUTBOX, late, Level.WARNING if facts.oldest_due > LATE else None)
    old = f"{counted(facts.old, 'open row')} older than {LONG:.0f} s"
    yield subject.ROWS_OLD.judged(OUTBOX, old, Level.WARNING if facts.old else None)
    stuck = f"{facts.unsettled_long} decided more than {LONG:.0f} s ago, oldest {facts.oldest_unsettled:.1f} s"
    stuck += _reasons(facts.unsettled)
    yield subject.ROWS_UNSETTLED.judged(OUTBOX, stuck, Level.WARNING if facts.unsettled_long else None)
    dead = facts.rows[State.DEAD]
    about = "~" if State.DEAD in facts.estimated else ""
    yield subject.ROWS_DEAD.judged(OUTBOX, f"{about}{dead}{_reasons(facts.dead)}", Level.WARNING if dead else None)


def of_groups(groups: Mapping[str, int], own: str) -> Iterator[Finding]:
    """``groups``: committed rows by producer group; ``own``: the group of the settings."""
    others = [f"{count} of {group}" for group, count in sorted(groups.items()) if group != own]
    seen = f"{', '.join(others)} beside {own}" if others else own
    yield subject.ROWS_OTHER_GROUP.judged(OUTBOX, seen, Level.NOTE if others else None)


def of_heartbeats(facts: RowFacts, gap: float) -> Iterator[Finding]:
    """``gap``: seconds of silence after which a listener counts as away."""
    live = [age for age in facts.heartbeats.values() if age <= gap]
    silent = len(facts.heartbeats) - len(live)
    seen = f"{len(live)} heard within {gap:g} s" + (f", {silent} silent" if silent else "")
    waiting = any(facts.rows[state] for state in open_states())
    yield subject.LISTENER_HEARTBEAT.judged(OUTBOX, seen, None if live else Level.WARNING if waiting else Level.NOTE)


def _reasons(counts: Mapping[str, int]) -> str:
    listed = "; ".join(f"{number} × {_short(reason)}" for reason, number in counts.items())
    return f": {listed}" if listed else ""


def _short(reason: str) -> str:
    text = " ".join(reason.split())
    return text if len(text) <= _REASON else text[: _REASON - 1] + "…"
