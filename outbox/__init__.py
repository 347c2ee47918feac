"""Transactional outbox for Apache RocketMQ: one business fact, one message, one effect."""

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
from outbox.session import Outbox

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
