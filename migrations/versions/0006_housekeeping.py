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

#: ``outbox.schema.STORAGE`` says why.
_VACUUM = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "5000",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_limit": "1000",
    "vacuum_index_cleanup": "on",
}


def upgrade() -> None:
    """MariaDB and MySQL have the index of all states, and clean up by themselves."""
    if op.get_context().dialect.name in MYSQL_FAMILY:
        return
    aside = sa.text("state IN ('cancelled', 'dead')")
    op.create_index("ix_outbox_set_aside", "outbox", ["state", "id"], postgresql_where=aside, sqlite_where=aside)
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE outbox SET ({', '.join(f'{name} = {value}' for name, value in _VACUUM.items())})")


def downgrade() -> None:
    """Counts and lists of dead rows read the whole table again."""
    if op.get_context().dialect.name in MYSQL_FAMILY:
        return
    op.drop_index("ix_outbox_set_aside", "outbox")
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE outbox RESET ({', '.join(_VACUUM)})")
