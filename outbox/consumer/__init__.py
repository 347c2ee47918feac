"""Consumers whose effects happen once per key, whatever the broker delivers how often.

What needs Redis (the extra ``redis``) is in ``outbox.consumer.redis_inbox`` and ``outbox.consumer.cached_inbox``.
"""

from outbox.consumer.batch_inbox import BatchInbox
from outbox.consumer.business import BusinessConsumer
from outbox.consumer.errors import LeaseLost, Permanent
from outbox.consumer.inbox import Inbox
from outbox.consumer.keys import Extractor, header
from outbox.consumer.leased_inbox import FencedLease, LeasedInbox
from outbox.consumer.memory_inbox import MemoryInbox
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, Filtered, InProgress, NoKey, Outcome, Park, Processed, Retry
from outbox.consumer.runner import Runner, RunnerSettings
from outbox.consumer.serve import run
from outbox.consumer.statements import at_version, ledger_entry, transition
from outbox.consumer.strategy import BatchStrategy, Strategy

__all__ = [
    "BatchInbox",
    "BatchStrategy",
    "BusinessConsumer",
    "Duplicate",
    "Extractor",
    "FencedLease",
    "Filtered",
    "InProgress",
    "Inbox",
    "LeaseLost",
    "LeasedInbox",
    "MemoryInbox",
    "Message",
    "NoKey",
    "Outcome",
    "Park",
    "Permanent",
    "Processed",
    "Retry",
    "Runner",
    "RunnerSettings",
    "Strategy",
    "at_version",
    "header",
    "ledger_entry",
    "run",
    "transition",
]
