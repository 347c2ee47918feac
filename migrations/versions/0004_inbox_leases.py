"""Leases of inbox rows, for handlers that outlast a transaction.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

from outbox.columns import Instant

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows so far have no owner, or are done."""
    op.add_column("outbox_inbox", sa.Column("token", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("outbox_inbox", sa.Column("lease_until", Instant()))
    op.add_column("outbox_inbox", sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    """Forgets who owns what; owners that live find out when they finish."""
    for column in ("attempts", "lease_until", "token"):
        op.drop_column("outbox_inbox", column)
