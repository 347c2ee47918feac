"""Rows set aside get an index of their own, and PostgreSQL cleans the outbox at its own pace.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

from outbox.columns import MYSQL_FAMILY

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """MariaDB and MySQL have the index of all states."""
    if op.get_context().dialect.name in MYSQL_FAMILY:
        return
    aside = sa.text("state IN ('cancelled', 'dead')")
    op.create_index("ix_outbox_set_aside", "outbox", ["state", "id"], postgresql_where=aside, sqlite_where=aside)


def downgrade() -> None:
    """Counts and lists of dead rows read the whole table again."""
    if op.get_context().dialect.name not in MYSQL_FAMILY:
        op.drop_index("ix_outbox_set_aside", "outbox")
