"""The declared tables. ``migrations/`` builds them; a test proves that head equals this metadata."""

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import ColumnElement

from outbox.columns import MYSQL_FAMILY, ExactText, Instant, ascii_name, blob, row_id
from outbox.lifecycle import Move, State, sources_of
from outbox.message import CONTENT_TYPE_BYTES, KEY_BYTES, TAG_BYTES, TOPIC_BYTES, Mode

#: A lane's name within the outbox: topic, slash, lane.
LANE_KEY_BYTES = TOPIC_BYTES + 1 + KEY_BYTES

#: Characters of a reason that are kept.
REASON_LENGTH = 1000

metadata = sa.MetaData(naming_convention={"ck": "ck_%(table_name)s_%(constraint_name)s"})


def _one_of(column: str, values: type[State] | type[Mode]) -> str:
    """A CHECK that lists the values, in their order."""
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", row_id(), sa.Identity(), primary_key=True, autoincrement=True),
    sa.Column("topic", ExactText(TOPIC_BYTES), nullable=False),
    sa.Column("key", ExactText(KEY_BYTES), nullable=False),
    sa.Column("tag", ExactText(TAG_BYTES)),
    sa.Column("payload", blob(), nullable=False),
    sa.Column("content_type", sa.String(CONTENT_TYPE_BYTES), nullable=False),
    sa.Column("headers", sa.JSON(), nullable=False),
    sa.Column("lane", ExactText(KEY_BYTES)),
    sa.Column("mode", ascii_name(13), nullable=False),
    sa.Column("state", ascii_name(9), nullable=False),
    sa.Column("token", ascii_name(16)),
    sa.Column("lease_id", ascii_name(16)),
    sa.Column("available_at", Instant(), nullable=False),
    sa.Column("not_before", Instant()),
    sa.Column("parked", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
    sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
    sa.Column("reason", sa.String(REASON_LENGTH)),
    sa.Column("half_id", ascii_name(64)),
    sa.Column("half_broker", sa.String(255)),
    sa.Column("half_handle", sa.String(255)),
    sa.Column("half_group", sa.String(255)),
    sa.Column("created_at", Instant(), nullable=False),
    sa.Column("decided_at", Instant()),
    sa.Column("delivered_at", Instant()),
    # Delivered without the broker's word: the transport cannot confirm, and the broker stopped asking.
    sa.Column("presumed", sa.Boolean(), nullable=False, server_default=sa.false()),
    # Topic and lane, as long as the row keeps its place in the lane: until it ends, or as a dead row that holds it.
    sa.Column("open_lane", ExactText(LANE_KEY_BYTES)),
    # One business fact, one row: the identity that the whole toolkit stands on.
    sa.UniqueConstraint("topic", "key", name="uq_outbox_topic_key"),
    sa.CheckConstraint(_one_of("state", State), name="state"),
    sa.CheckConstraint(_one_of("mode", Mode), name="mode"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    # SQLite gives the id of a deleted row to the next one otherwise, and an id must name one row for ever.
    sqlite_autoincrement=True,
)

#: The order in which rows become due, and in which both claims walk their indexes.
DUE_FIRST: Final = (outbox.c.available_at, outbox.c.id)


def state_in(states: Iterable[State]) -> ColumnElement[bool]:
    """The row is in one of the states; written out as literals, or no planner could match a partial index."""
    return outbox.c.state.in_([sa.literal(state.value, literal_execute=True) for state in states])


def claimable() -> ColumnElement[bool]:
    """What the claim index covers: rows that an attempt may take once their ``available_at`` has passed."""
    return sa.and_(state_in(sources_of(Move.COMMIT)), ~outbox.c.parked)


def unsettled() -> ColumnElement[bool]:
    """Rows whose decision the broker has not confirmed, by the commit-lease index.

    They are never parked, and to say so lets MariaDB's index of all states give them in the order of their leases.
    """
    return sa.and_(_decided(), ~outbox.c.parked)


def _decided() -> ColumnElement[bool]:
    """What the commit-lease index covers."""
    return state_in(sources_of(Move.REOPEN))


def following() -> ColumnElement[bool]:
    """Parked rows: they wait for the head of their lane. The index of the open lanes leads to them."""
    return sa.and_(state_in(sources_of(Move.COMMIT)), outbox.c.parked, outbox.c.open_lane.is_not(None))


def set_aside() -> ColumnElement[bool]:
    """What the index of rows set aside covers: rows that only an operator publishes."""
    return state_in(sources_of(Move.REQUEUE))


def _where(predicate: ColumnElement[bool]) -> dict[str, Any]:
    """The predicate as an index wants it, in each dialect's words: values written out, the table not named."""
    dialects = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}  # type: ignore[no-untyped-call]
    words = {"render_postcompile": True, "literal_binds": True}
    return {
        f"{name}_where": sa.text(str(predicate.compile(dialect=dialect, compile_kwargs=words)).replace("outbox.", ""))
        for name, dialect in dialects.items()
    }


def _partial_indexes(*_: object, dialect: sa.Dialect, **__: object) -> bool:
    """Whether the database has partial indexes."""
    return dialect.name not in MYSQL_FAMILY


def _state_index(*_: object, dialect: sa.Dialect, **__: object) -> bool:
    """Whether the state must lead the index instead."""
    return dialect.name in MYSQL_FAMILY


# Both claims find the first due rows at one end of an index, whatever the backlog behind them.
sa.Index("ix_outbox_claim", *DUE_FIRST, **_where(claimable())).ddl_if(callable_=_partial_indexes)
sa.Index("ix_outbox_commit_lease", *DUE_FIRST, **_where(_decided())).ddl_if(callable_=_partial_indexes)
sa.Index("ix_outbox_state", outbox.c.state, outbox.c.parked, *DUE_FIRST).ddl_if(callable_=_state_index)

# Operators list, count and requeue these few among millions that were delivered; a delivery never touches the index.
sa.Index("ix_outbox_set_aside", outbox.c.state, outbox.c.id, **_where(set_aside())).ddl_if(callable_=_partial_indexes)

# The head of a lane, whatever stands behind it and whatever has ended.
sa.Index(
    "ix_outbox_open_lane",
    outbox.c.open_lane,
    outbox.c.id,
    postgresql_where=sa.text("open_lane IS NOT NULL"),
    sqlite_where=sa.text("open_lane IS NOT NULL"),
)

#: How PostgreSQL stores and cleans the outbox. Each row is written four times, and no update is a HOT one: whatever
#: ships a row changes its state or its ``available_at``, which the partial indexes go by. Still most new versions find
#: room on the page of the old one where a page is not filled to the brim, since a page that is written to forgets what
#: nobody sees any more; and a version on the same page is logged as what has changed, without the payload. But each row
#: leaves three dead ones behind, and two dead entries at that end of the claim index from which every claim reads. By
#: default a table of seven million rows is cleaned after 1,400,000 of them, and its indexes not even then where they
#: lie on less than a fiftieth of its pages.
STORAGE = {
    "fillfactor": "70",
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "5000",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_limit": "1000",
    "vacuum_index_cleanup": "on",
}
_storage = sa.DDL(  # type: ignore[no-untyped-call]
    f"ALTER TABLE outbox SET ({', '.join(f'{name} = {value}' for name, value in STORAGE.items())})"
)
event.listen(outbox, "after_create", _storage.execute_if(dialect="postgresql"))

#: What transactions lock for a lane on MariaDB and MySQL, which have no advisory locks that end with a transaction.
lane_slot = sa.Table(
    "outbox_lane",
    metadata,
    sa.Column("slot", sa.Integer(), primary_key=True, autoincrement=False),
    mysql_engine="InnoDB",
)

#: One row: which outbox database this is. Together with the origin it says whose a half message is.
database = sa.Table(
    "outbox_database",
    metadata,
    sa.Column("database_id", ascii_name(16), primary_key=True),
    sa.Column("created_at", Instant(), nullable=False),
    mysql_engine="InnoDB",
)

#: Who answers checks, since when without a gap, and when it last said so; readiness and ``outbox status`` read it.
#: The row ``ANY_LISTENER`` speaks for all of them: since when some listener or other was there without a gap.
ANY_LISTENER = "*"
heartbeat = sa.Table(
    "outbox_heartbeat",
    metadata,
    sa.Column("name", ExactText(255), primary_key=True),
    sa.Column("beat_at", Instant(), nullable=False),
    sa.Column("started_at", Instant(), nullable=False),
    mysql_engine="InnoDB",
)
