"""Lanes: which lane a row still stands in, and what transactions lock for one where no advisory locks do it.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

from outbox.columns import ExactText

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Open rows of a lane take their places in it."""
    op.add_column("outbox", sa.Column("open_lane", ExactText(383)))
    columns = [sa.column(name, ExactText(383)) for name in ("topic", "lane", "open_lane")]
    row = sa.table("outbox", *columns)
    is_open = sa.text("lane IS NOT NULL AND state IN ('pending', 'committed')")
    key = row.c.topic.concat(sa.literal_column("'/'")).concat(row.c.lane)
    op.execute(row.update().where(is_open).values(open_lane=key))
    standing = sa.text("open_lane IS NOT NULL")
    op.create_index(
        "ix_outbox_open_lane", "outbox", ["open_lane", "id"], postgresql_where=standing, sqlite_where=standing
    )
    op.create_table(
        "outbox_lane",
        sa.Column("slot", sa.Integer(), primary_key=True, autoincrement=False),
        mysql_engine="InnoDB",
    )


def downgrade() -> None:
    """Forgets who stands where; rows keep the name of their lane."""
    op.drop_table("outbox_lane")
    op.drop_index("ix_outbox_open_lane", "outbox")
    op.drop_column("outbox", "open_lane")
