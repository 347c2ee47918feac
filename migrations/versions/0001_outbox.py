"""The outbox table, the database's identity and the heartbeats.

A revision is frozen: it spells out what it builds and does not follow the declared metadata of later versions.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

from outbox.columns import MYSQL_FAMILY, ExactText, Instant, ascii_name, blob, row_id
from outbox.store.clock import utc_now

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Builds the tables and draws the database's identity."""
    _outbox()
    _outbox_indexes()
    database = op.create_table(
        "outbox_database",
        sa.Column("database_id", ascii_name(16), primary_key=True),
        sa.Column("created_at", Instant(), nullable=False),
        mysql_engine="InnoDB",
    )
    # Not twice where an upgrade died right after it.
    drawn = sa.select(_random_id(), utc_now()).where(~sa.exists().select_from(database))
    op.execute(database.insert().from_select(["database_id", "created_at"], drawn))
    op.create_table(
        "outbox_heartbeat",
        sa.Column("name", ExactText(255), primary_key=True),
        sa.Column("beat_at", Instant(), nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        mysql_engine="InnoDB",
    )


def _outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", row_id(), sa.Identity(), primary_key=True, autoincrement=True),
        sa.Column("topic", ExactText(127), nullable=False),
        sa.Column("key", ExactText(255), nullable=False),
        sa.Column("tag", ExactText(127)),
        sa.Column("payload", blob(), nullable=False),
        sa.Column("content_type", sa.String(100), nullable=False),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("lane", ExactText(255)),
        sa.Column("mode", ascii_name(13), nullable=False),
        sa.Column("state", ascii_name(9), nullable=False),
        sa.Column("token", ascii_name(16)),
        sa.Column("lease_id", ascii_name(16)),
        sa.Column("available_at", Instant(), nullable=False),
        sa.Column("not_before", Instant()),
        sa.Column("parked", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("reason", sa.String(1000)),
        sa.Column("half_id", ascii_name(64)),
        sa.Column("half_broker", sa.String(255)),
        sa.Column("half_handle", sa.String(255)),
        sa.Column("half_group", sa.String(255)),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("decided_at", Instant()),
        sa.Column("delivered_at", Instant()),
        sa.UniqueConstraint("topic", "key", name="uq_outbox_topic_key"),
        sa.CheckConstraint(
            "state IN ('pending', 'committed', 'delivered', 'cancelled', 'dead')", name=op.f("ck_outbox_state")
        ),
        sa.CheckConstraint("mode IN ('transactional', 'plain')", name=op.f("ck_outbox_mode")),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        sqlite_autoincrement=True,
    )


def _outbox_indexes() -> None:
    if _dialect() in MYSQL_FAMILY:
        op.create_index("ix_outbox_state", "outbox", ["state", "parked", "available_at", "id"])
        return
    unparked = "parked = 0" if _dialect() == "sqlite" else "NOT parked"
    _partial_index("ix_outbox_claim", f"state IN ('pending') AND {unparked}")
    _partial_index("ix_outbox_commit_lease", "state IN ('committed')")


def _partial_index(name: str, predicate: str) -> None:
    where = sa.text(predicate)
    op.create_index(name, "outbox", ["available_at", "id"], postgresql_where=where, sqlite_where=where)


def _random_id() -> sa.ColumnElement[str]:
    """16 hexadecimal digits drawn by the database, so that the offline script draws its own each time it is run."""
    drawn = {
        "postgresql": "substr(replace(CAST(gen_random_uuid() AS text), '-', ''), 1, 16)",
        "sqlite": "lower(hex(randomblob(8)))",
    }
    return sa.literal_column(drawn.get(_dialect(), "lower(left(replace(uuid(), '-', ''), 16))"))


def _dialect() -> str:
    return op.get_context().dialect.name


def downgrade() -> None:
    """Drops everything, rows included."""
    for table in ("outbox_heartbeat", "outbox_database", "outbox"):
        op.drop_table(table)
