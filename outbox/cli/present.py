"""How rows are shown: tables for people, JSON for programs; neither cuts an id or a key."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]

#: What is shown of a payload: characters of text, or bytes as hexadecimal digits.
PREVIEW_CHARACTERS = 2000
PREVIEW_BYTES = 64
#: Width where no terminal wraps the lines: wider than any row.
_UNBOUNDED = 100_000


def as_json(value: object) -> None:
    """Writes a value as JSON: names as the columns are called, moments as ISO 8601 in UTC."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=iso))


def as_json_line(value: object) -> None:
    """Writes a value as one line of JSON, for output that is written as it comes."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=iso))


def as_line(text: str) -> None:
    """Writes one line that moves no cursor, whatever is in it."""
    typer.echo(_cell(text).replace("\n", "\\n"))


def as_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes rows under a header; long cells are folded on a terminal and left whole in a pipe."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    _write(table)


def as_fields(fields: Mapping[str, object]) -> None:
    """Writes one row, a line for each field."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, Text(_cell(value)))
    _write(table)


def payload_preview(payload: bytes) -> dict[str, object]:
    """The payload as text where it is UTF-8, else as hexadecimal digits; never more than a screenful."""
    try:
        text, encoding = payload.decode(), "utf-8"
        shown = text[:PREVIEW_CHARACTERS]
        whole = len(shown) == len(text)
    except UnicodeDecodeError:
        shown, encoding = payload[:PREVIEW_BYTES].hex(), "hex"
        whole = len(payload) <= PREVIEW_BYTES
    return {
        "payload": shown,
        "payload_encoding": encoding,
        "payload_bytes": len(payload),
        "payload_truncated": not whole,
    }


def iso(moment: object) -> str:
    """ISO 8601 in UTC with microseconds."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{type(moment).__name__}: no JSON is known for it")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    """One value as text that moves no cursor: control characters are written as escapes."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return iso(value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _write(table: Table) -> None:
    """Without trailing blanks, so that a pipe gets clean lines."""
    terminal = sys.stdout.isatty()
    console: Any = Console(markup=False, highlight=False, emoji=False, width=None if terminal else _UNBOUNDED)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
