"""``outbox audit``: does the broker hold what the database says, and nothing else of ours?"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress

from outbox import settings
from outbox.audit import Audit, Finding, Kind, Scope, Untold, before, scope_of
from outbox.brokers.ledger import CannotTell
from outbox.cli import present
from outbox.cli.options import BrokerUrl, DatabaseUrl, Named, OfTopic, Origin, ready, seconds
from outbox.errors import InvalidMessage
from outbox.origin import checked_origin
from outbox.settings import Settings
from outbox.store.audited import AuditedRows
from outbox.store.database import Database
from outbox.store.identity import Identity
from outbox.wiring import open_broker, open_ledger
from outbox.words import counted

_LAST: Final = "24h"
_COMPLETE: Final = (
    "mend it and audit again. Rows of a broker that was in use before: name it by --broker-url, or begin at the change "
    "by --since"
)

Expected = Annotated[
    list[str] | None,
    typer.Option(
        "--expect-origin",
        metavar="ORIGIN",
        help="Another service that may write to the topics, as its OUTBOX_ORIGIN says: its messages are counted, and "
        "are no finding; may be repeated.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("audit")(audit_command)


def audit_command(
    last: Annotated[str | None, typer.Option(help=f"Such as 90m, 36h, 7d; {_LAST} if no range is given.")] = None,
    since: Annotated[str | None, typer.Option(help="ISO 8601 with time zone, such as 2030-01-31T08:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="The same; now by default.")] = None,
    topic: OfTopic = None,
    expect_origin: Expected = None,
    older_than: Annotated[str, typer.Option(help="Age from which an open row counts as unfinished.")] = "10m",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line; counts come last.")] = False,
    database_url: DatabaseUrl = None,
    named: Named = None,
    broker_url: BrokerUrl = None,
    origin: Origin = None,
) -> None:
    """Compares the rows of a time range with what the broker holds; exit code 1 where they disagree."""
    age, back = seconds(older_than, "--older-than"), _last(last, since, until)
    others = [_service(origin) for origin in expect_origin or ()]
    begin, end = _moment(since, "--since"), _moment(until, "--until")
    loaded = settings.load(database_url=database_url, broker_url=broker_url, origin=origin, database=named)
    with ready(loaded) as database, _cannot_tell_is_told():
        now = AuditedRows(database).now()
        end = end or now
        begin = begin or before(end, back)
        if begin >= end:
            raise typer.BadParameter(f"{present.iso(begin)} is not before {present.iso(end)}", param_hint="--since")
        scope = scope_of(now, begin, end, topic, age, loaded.retention)
        with _opened(loaded, database, scope, others) as audit:
            counts = _told(audit, AuditedRows(database).last_id(), as_json)
    if audit.untold[Untold.UNCLEAR]:
        typer.echo(f"outbox: the audit is not complete: the log says why; {_COMPLETE}", err=True)
        raise typer.Exit(2)
    if counts:
        raise typer.Exit(1)


def _told(audit: Audit, last_id: int, as_json: bool) -> Counter[Kind]:
    """Writes each finding as it comes, then the counts."""
    counts: Counter[Kind] = Counter()
    with _progress(last_id) as progressed:
        for finding in audit.findings(last_id, progressed):
            counts[finding.kind] += 1
            if as_json:
                present.as_json_line(asdict(finding))
            else:
                present.as_line(_sentence(finding))
    looked_at = {"rows": audit.rows, "messages": audit.messages, "expected": audit.expected}
    kinds = {kind.value: counts[kind] for kind in Kind} | {why.value: audit.untold[why] for why in Untold}
    if as_json:
        scope = {"since": audit.scope.since, "until": audit.scope.until, "topic": audit.scope.topic}
        present.as_json_line({"kind": "counts", **scope, **looked_at, **kinds})
    else:
        looked = f"{counted(audit.rows, 'row')}, {counted(audit.messages, 'message')}"
        others = f", {audit.expected} of them of expected origins" if audit.expected else ""
        present.as_line(f"{looked}{others}: {_listed(kinds) or 'they agree'}")
    return counts


def _sentence(finding: Finding) -> str:
    row = "" if finding.row is None else f" row {finding.row}" + (f" ({finding.state})" if finding.state else "")
    message = f" message {finding.unique_id}" if finding.unique_id else ""
    return f"{finding.kind}:{row} topic {finding.topic} key {finding.key or '-'}{message}: {finding.detail}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


@contextmanager
def _opened(loaded: Settings, database: Database, scope: Scope, others: Collection[str]) -> Iterator[Audit]:
    origin = Identity(database).origin(loaded.service)
    # The ledger first: it refuses transports that cannot be audited, before anybody installs what they need.
    with closing(open_ledger(loaded)) as ledger, closing(open_broker(loaded)) as broker:
        yield Audit(AuditedRows(database), broker, ledger, origin, scope, others)


@contextmanager
def _cannot_tell_is_told() -> Iterator[None]:
    try:
        yield
    except CannotTell as error:
        typer.echo(f"outbox: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def _progress(last_id: int) -> Iterator[Callable[[str, int], None]]:
    """A bar over the ids of the rows, then a line for each topic; only on a terminal, and never within the output."""
    console = Console(stderr=True)
    shared = sys.stdout.isatty()
    with Progress(console=console, transient=True, disable=not console.is_terminal, redirect_stdout=shared) as bars:
        tasks = {"": bars.add_task("rows", total=last_id)}

        def progressed(topic: str, how_far: int) -> None:
            """The audit came so far: row id, or messages of the topic."""
            if topic not in tasks:
                tasks[topic] = bars.add_task("", total=None)
            words = "rows" if not topic else f"{how_far} messages"
            bars.update(tasks[topic], completed=how_far, description=words)

        yield progressed


def _last(last: str | None, since: str | None, until: str | None) -> float:
    """Seconds that the range goes back where it has no beginning."""
    if last is not None and (since is not None or until is not None):
        raise typer.BadParameter("is a range by itself: leave it, or --since and --until, out", param_hint="--last")
    if until is not None and since is None:
        raise typer.BadParameter("needs --since: a range has a beginning", param_hint="--until")
    return seconds(last or _LAST, "--last")


def _service(origin: str) -> str:
    try:
        return checked_origin(origin)
    except InvalidMessage as error:
        raise typer.BadParameter(
            f"{origin!r}: write it as that service's OUTBOX_ORIGIN says; leave out the '/' and what follows it",
            param_hint="--expect-origin",
        ) from error


def _moment(text: str | None, flag: str) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: write it like 2030-01-31T08:00Z", param_hint=flag) from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r}: has no time zone, write it like 2030-01-31T08:00Z", param_hint=flag)
    return moment
