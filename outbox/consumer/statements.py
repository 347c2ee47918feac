"""Business statements that are idempotent by themselves, and what "0 rows" means for each (C4).

A statement that changes nothing has three causes: the same message was there before, an earlier one is still missing,
or this one contradicts what happened. Acknowledging all three is the common bug; here each has an outcome of its own,
read from the row in the same transaction, under its lock.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outbox.columns import MYSQL_FAMILY
from outbox.consumer.drivers import DUPLICATE_ENTRY, number_of
from outbox.consumer.outcome import Duplicate, Park, Processed, Retry

#: What a statement of this module says of its message.
Said = Processed | Duplicate | Retry | Park


def transition(
    session: Session,
    table: sa.Table,
    row: Mapping[str, object],
    *,
    column: str,
    source: object,
    target: object,
    mark: Mapping[str, object],
    earlier: Collection[object] = (),
) -> Said:
    """Moves one row of a state machine: ``column`` from ``source`` to ``target``, writing ``mark``.

    ``row`` names the row by its columns. ``mark`` are the columns that say which fact made the move, such as
    ``{"payment_id": 17}``: a row that carries the same ones is a ``Duplicate``. A missing row, or one in an
    ``earlier`` state, is out of order (``Retry``). Everything else contradicts the message (``Park``).
    """
    moved = table.update().where(_same(table, row), table.c[column] == source).values({column: target, **mark})
    if _rows(session, moved):
        return Processed()
    found = _locked(session, table, row)
    if found is None:
        return Retry(f"{table.name} {dict(row)}: is not there yet")
    if all(found[name] == value for name, value in mark.items()):
        return Duplicate()
    state = found[column]
    if state in earlier:
        return Retry(f"{table.name} {dict(row)}: is {state!r}, not yet {source!r}")
    return Park(f"{table.name} {dict(row)}: is {state!r}, so it cannot go from {source!r} to {target!r}")


def at_version(
    session: Session,
    table: sa.Table,
    row: Mapping[str, object],
    *,
    version: int,
    values: Mapping[str, object],
    column: str = "version",
) -> Said:
    """Applies change number ``version`` of one row, on top of number ``version`` - 1 only.

    A row at this version or beyond has seen it (``Duplicate``); one further behind misses others (``Retry``).
    """
    before = table.c[column] == version - 1
    if _rows(session, table.update().where(_same(table, row), before).values({**values, column: version})):
        return Processed()
    found = _locked(session, table, row)
    if found is None:
        return Retry(f"{table.name} {dict(row)}: is not there yet")
    current = found[column]
    if current >= version:
        return Duplicate()
    return Retry(f"{table.name} {dict(row)}: is at version {current}, {version} comes after {version - 1}")


def ledger_entry(session: Session, table: sa.Table, entry: Mapping[str, object], *, unique: Sequence[str]) -> Said:
    """Writes the ledger row that says that an effect took place; ``Processed``: now do it, in this transaction.

    ``unique`` are the columns of the unique key that identifies the effect, such as order, article and kind. An entry
    that is there with the same values is a ``Duplicate``; with others it is another fact under the same name
    (``Park``). Violations of any other constraint rise.
    """
    key = {name: entry[name] for name in unique}
    if _inserted(session, table, entry, key):
        return Processed()
    found = _locked(session, table, key)
    if found is None:
        return Retry(f"{table.name} {key}: was there and is gone")
    other = sorted(name for name, value in entry.items() if found[name] != value)
    if not other:
        return Duplicate()
    return Park(f"{table.name} {key}: is there with another {', '.join(other)}; one effect needs one key of its own")


def _same(table: sa.Table, row: Mapping[str, object]) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == value for name, value in row.items()))


def _rows(session: Session, statement: sa.Update) -> int:
    """Rows that the statement found; it always changes them, so that MySQL's two ways of counting agree."""
    result: Any = session.execute(statement)
    count: int = result.rowcount
    return count


def _locked(session: Session, table: sa.Table, row: Mapping[str, object]) -> sa.RowMapping | None:
    """The row as it is now, not as a snapshot of the transaction's start has it."""
    return session.execute(sa.select(table).where(_same(table, row)).with_for_update()).mappings().first()


def _inserted(session: Session, table: sa.Table, entry: Mapping[str, object], key: Mapping[str, object]) -> bool:
    """Whether the row is new. The key is named, or other violations would pass for repeats."""
    dialect = session.get_bind().dialect.name
    if dialect not in MYSQL_FAMILY:
        build = postgresql.insert if dialect == "postgresql" else sqlite.insert
        statement = build(table).values(dict(entry)).on_conflict_do_nothing(index_elements=list(key))
        return bool(session.execute(statement.returning(sa.literal(1))).first())
    try:
        session.execute(table.insert().values(dict(entry)))
    except IntegrityError as error:
        # MySQL undoes the statement alone. Is it this key, or another constraint?
        if number_of(error.orig) != DUPLICATE_ENTRY or _locked(session, table, key) is None:
            raise
        return False
    return True
