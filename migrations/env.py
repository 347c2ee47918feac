"""Alembic environment: runs the revisions on the connection (or for the dialect) that ``outbox db`` hands over."""

from alembic import context

from outbox.consumer.schema import inbox  # noqa: F401 -- declares the consumer's tables on the metadata
from outbox.revision import VERSION_TABLE
from outbox.schema import metadata

config = context.config
if context.is_offline_mode():
    context.configure(
        dialect_name=config.attributes["dialect_name"],
        target_metadata=metadata,
        literal_binds=True,
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(
        connection=config.attributes["connection"],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()
