"""The tables of ``docs/consumer-guarantees.md`` that tests measure, read and rewritten.

OUTBOX_REWRITE_DOCS=1 python -m pytest tests/integration/strategies/test_crash_points.py
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.strategies.crash_points import Point

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "consumer-guarantees.md"
REWRITES: Final = "OUTBOX_REWRITE_DOCS"
POINTS: Final = [point for point in Point if point is not Point.NONE]
_HEAD: Final = "| crash point | effects counted | acknowledged? | redelivered? |\n|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of one message."""

    effects: int
    #: Before the strike.
    acknowledged: bool
    #: After it.
    redelivered: bool

    def row(self, point: Point) -> str:
        """Of the table."""
        return f"| {point.value} | {self.effects} | {_word(self.acknowledged)} | {_word(self.redelivered)} |\n"


def documented(strategy: str, point: Point) -> str:
    """The row that is committed."""
    return _rows(DOCUMENT.read_text(encoding="utf-8"), strategy)[point]


def compare(point: Point, measured: dict[str, Measured]) -> None:
    """Fails where the document says something else; with ``OUTBOX_REWRITE_DOCS`` it is made to say this."""
    if REWRITES in os.environ:
        for strategy, each in measured.items():
            _write(strategy, point, each.row(point))
    assert {strategy: each.row(point) for strategy, each in measured.items()} == {
        strategy: documented(strategy, point) for strategy in measured
    }


def _write(strategy: str, point: Point, row: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = _rows(text, strategy) | {point: row}
    block = _HEAD + "".join(rows[each] for each in POINTS)
    DOCUMENT.write_text(_block(strategy).sub(lambda found: found[1] + block + found[3], text), encoding="utf-8")


def _rows(text: str, strategy: str) -> dict[Point, str]:
    found = _block(strategy).search(text)
    assert found, f"{DOCUMENT.name}: no block <!-- crash:{strategy} -->"
    by_point = {line.split(" | ")[0].removeprefix("| "): f"{line}\n" for line in found[2].splitlines()}
    return {point: by_point.get(point.value, f"| {point.value} | ? | ? | ? |\n") for point in POINTS}


def _block(strategy: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- crash:{strategy} -->\n)(.*?)(<!-- /crash -->)", re.DOTALL)


def _word(truth: bool) -> str:
    return "yes" if truth else "no"
