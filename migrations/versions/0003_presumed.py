"""Deliveries that are presumed rather than confirmed.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Every delivery so far was confirmed."""
    op.add_column("outbox", sa.Column("presumed", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Forgets which deliveries were presumed."""
    op.drop_column("outbox", "presumed")
