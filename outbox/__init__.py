"""Transactional outbox for Apache RocketMQ: one business fact, one message, one effect."""

from typing import TYPE_CHECKING, Any

from outbox.errors import (
    DuplicateKey,
    InvalidMessage,
    NotAwaited,
    NoTransaction,
    OutboxError,
    PayloadMismatch,
    SchemaError,
    SettingsError,
)

if TYPE_CHECKING:
    from outbox.session import Outbox
else:

    def __getattr__(name: str) -> Any:
        """``Outbox`` brings SQLAlchemy along, which takes long; commands that ask no database do without it."""
        if name != "Outbox":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from outbox.session import Outbox

        return Outbox


__all__ = [
    "DuplicateKey",
    "InvalidMessage",
    "NoTransaction",
    "NotAwaited",
    "Outbox",
    "OutboxError",
    "PayloadMismatch",
    "SchemaError",
    "SettingsError",
]
