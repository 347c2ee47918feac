"""``outbox status | list | show | requeue | cancel | purge``: what operators ask about rows, and do to them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from outbox import settings
from outbox.cli import present
from outbox.cli.options import DatabaseUrl, Named, OfTopic, opened, seconds, utf8
from outbox.commits import OUTCOME_UNKNOWN
from outbox.lifecycle import Move, State, sources_of
from outbox.message import Mode
from outbox.store.operations import Filter, Operations
from outbox.store.retention import Periods, Retention
from outbox.words import counted

#: Rows of one transaction of a bulk requeue or purge.
_BATCH = 500
_MOST_ID = 2**63 - 1
_COLUMNS = (
    "id", "state", "topic", "key", "lane", "attempts", "failures", "created_at", "available_at", "reason",
)  # fmt: skip
#: Held lanes that the status names.
_HELD = 20
_DONE = {Move.CANCEL: State.CANCELLED.value, Move.REQUEUE: "requeued"}


RowId = Annotated[int, typer.Argument(metavar="ID", min=1, max=_MOST_ID)]
RowIds = Annotated[list[int] | None, typer.Argument(metavar="ID", min=1, max=_MOST_ID)]
InState = Annotated[State | None, typer.Option("--state", help="Only rows in this state.")]
OfLane = Annotated[str | None, typer.Option("--lane", help="Only rows of this lane.", callback=utf8)]
OfReason = Annotated[str | None, typer.Option("--reason", help="Only rows whose reason has this.", callback=utf8)]
OfAge = Annotated[str | None, typer.Option("--older-than", help="Only rows added so long ago, such as 90m, 36h, 14d.")]
OfKey = Annotated[str | None, typer.Option("--key", help="Only rows with this business key.", callback=utf8)]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (status_command, list_command, show_command, requeue_command, cancel_command, purge_command):
        app.command(command.__name__.removesuffix("_command"))(command)


def status_command(
    exact: Annotated[bool, typer.Option("--exact", help="Count every row, which takes long on millions.")] = False,
    as_json: present.AsJson = False,
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Shows how many rows are in each state (~: an estimate), how late the oldest is, and who listens for checks."""
    with _operations(database_url, named) as operations:
        figures = operations.figures(exact=exact)
        holders = operations.holders(_HELD)
    if as_json:
        present.as_json(
            {
                "rows": dict(figures.rows),
                "estimated": sorted(figures.estimated),
                "oldest_due_seconds": round(figures.oldest_due, 3),
                "oldest_unsettled_seconds": round(figures.oldest_unsettled, 3),
                "heartbeat_seconds": {name: round(age, 3) for name, age in figures.heartbeats.items()},
                "held_lanes": [{name: row[name] for name in ("topic", "lane", "id", "reason")} for row in holders],
            }
        )
        return
    about = {state: "~" if state in figures.estimated else "" for state in figures.rows}
    if named:
        typer.echo(f"database: {named}\n")
    present.as_table(["state", "rows"], ((state, f"{about[state]}{number}") for state, number in figures.rows.items()))
    typer.echo(f"\noldest due row: {figures.oldest_due:.1f} s")
    typer.echo(f"oldest decision that the broker has not confirmed: {figures.oldest_unsettled:.1f} s")
    for row in holders:
        typer.echo(f"lane {row['open_lane']}: held by dead row {row['id']}: requeue it or cancel it")
    if not figures.heartbeats:
        typer.echo("listeners: none; outbox relay or outbox checkback answers checks")
    for name, age in sorted(figures.heartbeats.items()):
        typer.echo(f"listener {name}: heard {age:.1f} s ago")


def list_command(
    state: InState = None,
    topic: OfTopic = None,
    key: OfKey = None,
    lane: OfLane = None,
    reason: OfReason = None,
    older_than: OfAge = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many rows.")] = 50,
    after: Annotated[int, typer.Option(min=0, max=_MOST_ID, help="Only rows with a higher id.")] = 0,
    as_json: present.AsJson = False,
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Lists rows in the order of their ids, without payloads.

    Rows of one --key, and those in --state dead or cancelled, are found at once, whatever else is asked for. All others
    are looked for row by row until there are enough: among millions begin further on, with --after.
    """
    with _operations(database_url, named) as operations:
        which = Filter(state, topic, key, lane=lane, reason=reason, older_than=_seconds(older_than))
        found = operations.listed(which, limit + 1, after)
    rows = found[:limit]
    if as_json:
        present.as_json(rows)
    else:
        present.as_table(_COLUMNS, ([row[name] for name in _COLUMNS] for row in rows))
    if len(found) > limit:
        typer.echo(f"more rows follow: --after {rows[-1]['id']}", err=True)


def show_command(
    row_id: RowId, as_json: present.AsJson = False, database_url: DatabaseUrl = None, named: Named = None
) -> None:
    """Shows everything about one row."""
    with _operations(database_url, named) as operations:
        row = operations.shown(row_id)
    if row is None:
        typer.echo(f"outbox: row {row_id}: there is no such row", err=True)
        raise typer.Exit(2)
    fields = row | present.payload_preview(row.pop("payload"))
    (present.as_json if as_json else present.as_fields)(fields)


def requeue_command(
    row_ids: RowIds = None,
    state: InState = None,
    topic: OfTopic = None,
    reason: OfReason = None,
    older_than: OfAge = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead rows.")] = False,
    even_if_visible: Annotated[
        bool, typer.Option(help="Also rows whose outcome is unknown: their message may be there, and come twice.")
    ] = False,
    out_of_order: Annotated[
        bool, typer.Option(help="Also rows whose lane has gone on without them: their messages come late.")
    ] = False,
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Puts rows back to be published: the named ones, or all in --state (dead by default) that the filters let by."""
    which = Filter(state, topic, reason=reason, older_than=_seconds(older_than))
    source = _requeued_state(bool(row_ids), state, everything or which != Filter())
    with _operations(database_url, named) as operations:
        requeue = partial(operations.requeue, out_of_order=out_of_order)
        if row_ids:
            doubtful = () if even_if_visible else _doubtful(operations, row_ids)
            _each(operations, [it for it in row_ids if it not in doubtful], requeue, Move.REQUEUE)
            _leave(doubtful)
            return
        asked = count = 0
        for ids in _pages(operations, replace(which, state=source), skip_doubtful=not even_if_visible):
            asked += len(ids)
            count += len(requeue(ids))
    typer.echo(f"requeued {counted(count, 'row')}")
    if count < asked:
        left = counted(asked - count, "row")
        typer.echo(f"{left} left alone: the lane has gone on meanwhile (--out-of-order)", err=True)


def cancel_command(
    row_ids: Annotated[list[int], typer.Argument(metavar="ID", min=1, max=_MOST_ID)],
    reason: Annotated[str, typer.Option(help="Why; kept with the row.", callback=utf8)] = "cancelled by an operator",
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Makes sure that pending rows are never published, and lets the lanes go on that dead rows hold."""
    with _operations(database_url, named) as operations:
        released = operations.release(row_ids)
        for row_id in released:
            typer.echo(f"row {row_id}: stays dead, its lane goes on")
        left = [row_id for row_id in row_ids if row_id not in released]
        _each(operations, left, lambda ids: operations.cancel(ids, reason), Move.CANCEL)


def purge_command(
    older_than: Annotated[
        str | None, typer.Option(help="Age, such as 90m, 36h, 14d; by default OUTBOX_RETENTION.")
    ] = None,
    dead_older_than: Annotated[
        str | None,
        typer.Option(help="Age of dead rows; by default OUTBOX_RETENTION_DEAD, and without it they are kept."),
    ] = None,
    database_url: DatabaseUrl = None,
    named: Named = None,
) -> None:
    """Deletes delivered and cancelled rows that ended long enough ago, and dead ones if their age is named."""
    loaded = settings.load()
    periods = Periods(
        loaded.retention if older_than is None else _age(older_than, loaded.check_horizon, "--older-than"),
        loaded.retention_dead
        if dead_older_than is None
        else _age(dead_older_than, loaded.check_horizon, "--dead-older-than"),
    )
    with opened(database_url, named) as database:
        deleted = sum(Retention(database).run(periods, _BATCH))
    typer.echo(f"deleted {counted(deleted, 'row')}")


@contextmanager
def _operations(database_url: str | None, named: str | None) -> Iterator[Operations]:
    with opened(database_url, named) as database:
        yield Operations(database)


def _requeued_state(named: bool, state: State | None, filtered: bool) -> State:
    """The from-state of a bulk requeue. Cancelled rows come back only where they are asked for by that name."""
    if named == filtered:
        raise typer.BadParameter(
            "name the rows by ID, or choose them by --state, --topic, --reason, --older-than or --all: one of the two"
        )
    source = State.DEAD if state is None else state
    if source not in sources_of(Move.REQUEUE):
        raise typer.BadParameter(f"{source}: {_rule(Move.REQUEUE)}", param_hint="--state")
    return source


def _pages(operations: Operations, which: Filter, *, skip_doubtful: bool) -> Iterator[list[int]]:
    last = 0
    while rows := operations.listed(which, _BATCH, last):
        yield [row["id"] for row in rows if not (skip_doubtful and _is_doubtful(row))]
        last = rows[-1]["id"]


def _doubtful(operations: Operations, row_ids: Sequence[int]) -> list[int]:
    return [row["id"] for row in operations.listed(Filter(ids=row_ids), len(row_ids)) if _is_doubtful(row)]


def _is_doubtful(row: dict[str, Any]) -> bool:
    """Nobody knows whether the row's message is visible: to publish it again may repeat it."""
    return bool(row["state"] == State.DEAD and (row["reason"] or "").startswith(OUTCOME_UNKNOWN))


def _leave(doubtful: Sequence[int]) -> None:
    """Tells of the rows that were left alone; exit code 1 if there are any."""
    for row_id in doubtful:
        typer.echo(
            f"row {row_id}: its message may be visible already; find out with `outbox audit`, then either leave it, or "
            "requeue it with --even-if-visible",
            err=True,
        )
    if doubtful:
        raise typer.Exit(1)


def _each(
    operations: Operations, row_ids: Sequence[int], apply: Callable[[Iterable[int]], list[int]], move: Move
) -> None:
    """Applies a move to the named rows and tells of each what became of it; exit code 1 if one did not change."""
    changed = set(apply(row_ids))
    left = [row_id for row_id in dict.fromkeys(row_ids) if row_id not in changed]
    rows = {row["id"]: row for row in operations.listed(Filter(ids=left), len(left))} if left else {}
    for row_id in dict.fromkeys(row_ids):
        if row_id in changed:
            typer.echo(f"row {row_id}: {_DONE[move]}")
        else:
            typer.echo(_why_not(row_id, rows.get(row_id), move), err=True)
    if left:
        raise typer.Exit(1)


def _why_not(row_id: int, row: dict[str, Any] | None, move: Move) -> str:
    if row is None:
        return f"row {row_id}: there is no such row"
    if row["state"] not in sources_of(move):
        return f"row {row_id} is {row['state']}: {_rule(move)}"
    if move is Move.REQUEUE and row["lane"] is not None and row["open_lane"] is None:
        return f"row {row_id}: its lane has gone on without it; --out-of-order publishes it all the same"
    if row["mode"] == Mode.PLAIN:
        again = present.iso(row["available_at"])
        return (
            f"row {row_id} is a plain message, and an attempt is under way or had no outcome: it may have been sent, "
            f"and cannot be called back; it is tried again from {again} on"
        )
    return f"row {row_id} has changed meanwhile: try again"


def _rule(move: Move) -> str:
    return f"only {' or '.join(sources_of(move))} rows can be {_DONE[move]}"


def _seconds(older_than: str | None) -> float | None:
    return None if older_than is None else seconds(older_than, "--older-than")


def _age(text: str, horizon: float, flag: str) -> float:
    """Seconds; never less than the broker's check horizon, within which it may still ask about a row's half."""
    age = seconds(text, flag)
    if age <= horizon:
        raise typer.BadParameter(
            f"{text!r}: must be longer than the broker's check horizon, {horizon:.0f} s", param_hint=flag
        )
    return age
