"""PostgreSQL leaves room on the outbox's pages for the versions that a row leaves behind on its way.

Pages that are full already stay as they are: rows that are added from now on find the room.

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """``outbox.schema.STORAGE`` says why."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE outbox SET (fillfactor = 70)")


def downgrade() -> None:
    """Pages are filled to the brim again."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE outbox RESET (fillfactor)")
