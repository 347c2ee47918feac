"""The consumer's inbox and its parked messages.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from outbox.columns import MYSQL_FAMILY, ExactText, Instant, ascii_name, blob, row_id

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Builds the two tables."""
    op.create_table(
        "outbox_inbox",
        sa.Column("consumer", ExactText(100), primary_key=True),
        sa.Column("key", _exact_bytes(200), primary_key=True),
        sa.Column("topic", ExactText(127), nullable=False),
        sa.Column("payload_hash", _exact_bytes(32), nullable=False),
        sa.Column("received_at", Instant(), nullable=False),
        sa.Column("done_at", Instant()),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    op.create_index("ix_outbox_inbox_done", "outbox_inbox", ["consumer", "done_at"])
    op.create_table(
        "outbox_parked",
        sa.Column("id", row_id(), sa.Identity(), primary_key=True, autoincrement=True),
        sa.Column("consumer", ExactText(100), nullable=False),
        sa.Column("fingerprint", _exact_bytes(32), nullable=False),
        sa.Column("topic", ExactText(127), nullable=False),
        sa.Column("key", blob()),
        sa.Column("tag", ExactText(127)),
        sa.Column("body", blob(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("unique_id", ascii_name(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("parked_at", Instant(), nullable=False),
        sa.UniqueConstraint("consumer", "fingerprint", name="uq_outbox_parked_fingerprint"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def _exact_bytes(length: int) -> TypeEngine[bytes]:
    return sa.LargeBinary(length).with_variant(mysql.VARBINARY(length), *MYSQL_FAMILY)


def downgrade() -> None:
    """Drops both, rows included."""
    for table in ("outbox_parked", "outbox_inbox"):
        op.drop_table(table)
