"""``outbox doctor``: looks at broker, database and outbox, and says what is wrong, what it means and what to do."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from outbox import settings
from outbox.brokers.examiner import Examiner
from outbox.cli import present
from outbox.cli.options import BrokerUrl, DatabaseUrl, Named, Origin
from outbox.doctor.examination import examine
from outbox.doctor.findings import Finding, Level, alarms, summary
from outbox.settings import Settings
from outbox.wiring import open_database, open_examiner

Topics = Annotated[list[str] | None, typer.Option("--topic", help="Look at this topic too; may be repeated.")]
Groups = Annotated[list[str] | None, typer.Option("--group", help="A consumer group to look at; may be repeated.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor")(doctor_command)


def doctor_command(
    topic: Topics = None,
    group: Groups = None,
    as_json: present.AsJson = False,
    database_url: DatabaseUrl = None,
    named: Named = None,
    broker_url: BrokerUrl = None,
    origin: Origin = None,
) -> None:
    """Examines broker, database and outbox; exit code 1 if there is a warning or a problem. Changes nothing."""
    loaded = settings.load(database_url=database_url, broker_url=broker_url, origin=origin, database=named)
    with closing(open_database(loaded)) as database, _examiner(loaded) as examiner:
        findings = list(examine(loaded, database, examiner, topic or (), group or ()))
    if as_json:
        present.as_json([asdict(finding) for finding in findings])
    else:
        _tell(findings)
    if alarms(findings):
        raise typer.Exit(1)


@contextmanager
def _examiner(loaded: Settings) -> Iterator[Examiner | None]:
    examiner = open_examiner(loaded)
    try:
        yield examiner
    finally:
        if examiner is not None:
            examiner.close()


def _tell(findings: Sequence[Finding]) -> None:
    """Everything as a table, then what is not ok with its meaning and remedy, the worst first."""
    present.as_table(["level", "id", "about", "seen"], ([it.level, it.id, it.about, it.seen] for it in findings))
    wrong = [it for it in findings if it.level is not Level.OK]
    for level in reversed(list(Level)):
        told = {it.id: it for it in wrong if it.level is level}
        for finding in told.values():
            present.as_line(f"{level}: {finding.id}")
            present.as_line(f"  means: {finding.meaning}")
            present.as_line(f"  do:    {finding.remedy}")
    present.as_line(summary(findings))
