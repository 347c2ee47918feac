"""``outbox parked list | retry | drop``: what operators do about messages that a consumer could not take."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from outbox.cli import present
from outbox.cli.target import Target, imported, target_reachable
from outbox.consumer import Duplicate, Filtered, Outcome, Processed
from outbox.consumer.sql_consumer import SqlConsumer
from outbox.errors import SettingsError

app = typer.Typer(help="Messages that a consumer has parked.", no_args_is_help=True)

_PAGE = 500
_MOST_ID = 2**63 - 1

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", min=1, max=_MOST_ID)]


def register(commands: typer.Typer) -> None:
    """Adds the commands."""
    commands.add_typer(app, name="parked")


@app.command("list")
def list_command(
    target: Target,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many messages.")] = 50,
    after: Annotated[int, typer.Option(min=0, max=_MOST_ID, help="Only messages with a higher id.")] = 0,
    as_json: present.AsJson = False,
) -> None:
    """Lists parked messages in the order of their ids, with the reason of each."""
    with _consumer(target) as consumer:
        found = [_shown(row) for row in consumer.parked(limit, after)]
    if as_json:
        present.as_json(found)
        return
    columns = ["id", "topic", "key", "attempt", "reason", "parked_at"]
    present.as_table(columns, ([row[name] for name in columns] for row in found))


@app.command("retry")
def retry_command(
    target: Target,
    ids: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are parked now.")] = False,
) -> None:
    """Processes parked messages once more; what is settled by it is parked no longer. Exit code 1: some stay."""
    if everything == bool(ids):
        raise typer.BadParameter("name the messages by ID, or choose all with --all: one of the two")
    stay = 0
    with _consumer(target) as consumer:
        for parked_id in ids or list(_all(consumer)):
            outcome = consumer.retry(parked_id)
            stay += not isinstance(outcome, Processed | Duplicate | Filtered)
            typer.echo(f"message {parked_id}: {_said(outcome)}")
    if stay:
        raise typer.Exit(1)


@app.command("drop")
def drop_command(target: Target, ids: Ids = None) -> None:
    """Deletes parked messages for good, unprocessed. Exit code 1: one was not there."""
    missing = 0
    with _consumer(target) as consumer:
        for parked_id in ids or []:
            gone = consumer.drop(parked_id)
            missing += not gone
            typer.echo(f"message {parked_id}: {'dropped' if gone else 'there is no such message'}")
    if missing or not ids:
        raise typer.Exit(1)


@contextmanager
def _consumer(target: str) -> Iterator[SqlConsumer]:
    consumer = imported(target)
    if not isinstance(consumer, SqlConsumer):
        raise SettingsError(
            f"MODULE:OBJECT: {target!r} has no parking table; name the Inbox itself (behind a cache: the one it caches)"
        )
    with target_reachable(target):
        consumer.check()
        yield consumer
    consumer.close()


def _all(consumer: SqlConsumer) -> Iterator[int]:
    last = 0
    while page := consumer.parked(_PAGE, last):
        yield from (row["id"] for row in page)
        last = page[-1]["id"]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    key = row["key"]
    return row | {"key": None if key is None else bytes(key).decode("utf-8", "backslashreplace")}


def _said(outcome: Outcome | None) -> str:
    if outcome is None:
        return "there is no such message"
    reason = getattr(outcome, "reason", "")
    return f"{type(outcome).__name__.lower()}{': ' + reason if reason else ''}"
