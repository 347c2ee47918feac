"""The engine of a service, as any service has one."""

import sqlalchemy as sa

from outbox.store.database import parsed


def open_engine(url: str) -> sa.Engine:
    """An engine of the service's own; on SQLite it waits for the others, who write to the same file."""
    address = parsed(url)
    patient = {"timeout": 60} if address.get_backend_name() == "sqlite" else {}
    return sa.create_engine(address, connect_args=patient)
