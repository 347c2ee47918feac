"""Consumers whose effects happen once per key, whatever the broker delivers how often."""

from typing import TYPE_CHECKING

from outbox.consumer.business import BusinessConsumer
from outbox.consumer.errors import LeaseLost, Permanent
from outbox.consumer.inbox import Inbox
from outbox.consumer.keys import Extractor, header
from outbox.consumer.leased_inbox import FencedLease, LeasedInbox
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, Filtered, InProgress, NoKey, Outcome, Park, Processed, Retry
from outbox.consumer.runner import Runner, RunnerSettings
from outbox.consumer.serve import run
from outbox.consumer.statements import at_version, ledger_entry, transition
from outbox.consumer.strategy import Strategy
from outbox.errors import SettingsError

if TYPE_CHECKING:
    from outbox.consumer.redis_inbox import RedisInbox

__all__ = [
    "BusinessConsumer",
    "Duplicate",
    "Extractor",
    "FencedLease",
    "Filtered",
    "InProgress",
    "Inbox",
    "LeaseLost",
    "LeasedInbox",
    "Message",
    "NoKey",
    "Outcome",
    "Park",
    "Permanent",
    "Processed",
    "RedisInbox",
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


def __getattr__(name: str) -> object:
    """What needs an extra is imported when it is asked for."""
    if name != "RedisInbox":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from outbox.consumer.redis_inbox import RedisInbox
    except ModuleNotFoundError as error:
        raise SettingsError(f"{name}: {error}; install it with: pip install 'rocketmq-outbox[redis]'") from error
    return RedisInbox
