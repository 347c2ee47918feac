"""The toolkit's exceptions, one tree.

::

    OutboxError
    ├── InvalidMessage          a field of the message breaks a limit of RocketMQ (also a ValueError)
    ├── NoTransaction           the caller's connection commits each statement by itself
    ├── NotAwaited              a commit while an add over its async session was not awaited
    ├── DuplicateKey            (topic, key) is taken by a row with the same payload
    ├── PayloadMismatch         (topic, key) is taken by a row with another payload
    ├── SettingsError           a setting is missing or wrong
    └── SchemaError             the database's schema is missing, older or newer than this version
"""


class OutboxError(Exception):
    """Root of everything that the toolkit raises on purpose."""


class InvalidMessage(OutboxError, ValueError):
    """A field of the message breaks a limit of RocketMQ; ``field`` names it. Nothing was written."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class NoTransaction(OutboxError):
    """The caller's connection is in autocommit: the outbox row would not share the business transaction."""


class NotAwaited(OutboxError):
    """An add over an async session was not awaited, so its row is missing; the commit was refused."""


class _KeyTaken(OutboxError):
    """``(topic, key)`` is unique as long as the earlier row is kept; ``row_id`` names that row."""

    def __init__(self, topic: str, key: str, row_id: int, remedy: str) -> None:
        super().__init__(f"topic {topic!r}, key {key!r}: taken by row {row_id}{remedy}")
        self.topic = topic
        self.key = key
        self.row_id = row_id


class DuplicateKey(_KeyTaken):
    """The same message was added before; the transaction stays usable, nothing was written."""

    def __init__(self, topic: str, key: str, row_id: int) -> None:
        super().__init__(topic, key, row_id, " with the same payload; pass if_exists='skip' if that is expected")


class PayloadMismatch(_KeyTaken):
    """Another message was added under this key before; the transaction stays usable, nothing was written."""

    def __init__(self, topic: str, key: str, row_id: int) -> None:
        super().__init__(topic, key, row_id, " with another payload; one business fact needs one key of its own")


class SettingsError(OutboxError):
    """A setting is missing or wrong; the text names it and the remedy."""


class SchemaError(OutboxError):
    """The database's schema does not fit this version; the text names the remedy."""
