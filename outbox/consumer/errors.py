"""What a handler raises, and what it is told when it touches what is not its own."""

from outbox.errors import OutboxError


class Permanent(OutboxError):
    """Raised by a handler: this message can never be processed. It is parked, not retried."""


class TransactionBroken(OutboxError):
    """The handler ended the inbox's transaction, or went on after an error that had spoiled it; nothing is kept."""


class LeaseLost(OutboxError):
    """The lease of the key is over or taken: another owner may be at work, so nothing more may be done for it."""


class StoreAway(OutboxError):
    """The store of the claims cannot be reached or cannot write, so that any other message would fare the same."""


class LostMeanwhile(OutboxError):
    """The store was there when the handler began, and its connection is lost since: an outage, or its doing."""


class CommittedEarly(OutboxError):
    """The transaction was ended behind the inbox's back: what came before may be durable, what came after is not."""


class HandlerFailed(OutboxError):
    """The handler met an error of another database than the inbox's, or did not work at all (a coroutine)."""
