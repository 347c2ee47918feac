"""The settings of the embedded broker; the defaults are RocketMQ's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: The host's wall clock in seconds: all processes that share the file must read the same one.
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class BrokerTiming:
    """Times in seconds; each process goes by its own, so processes that share a file should share these too."""

    #: Age of a half before its first check (``transactionTimeOut``).
    transaction_timeout: float = 6.0
    #: From one round of checks to the next (``transactionCheckInterval``).
    check_interval: float = 30.0
    #: Checks before a half is discarded, counted also when nobody listens (``transactionCheckMax``).
    max_checks: int = 15
    #: Redeliveries before a message goes to the dead-letter topic (``retryMaxTimes``).
    max_retries: int = 16
    #: Age at which messages and halves leave the file (``fileReservedTime``: 72 h).
    retention: float = 72 * 3600.0
    #: A listener that sent no heartbeat for this long is asked no more; heartbeats come at a third of it.
    listener_expiry: float = 10.0
    #: How often a listener or a waiting source looks into the file.
    poll_interval: float = 0.05
    #: How long a call without a time limit of its own waits for another process's transaction.
    busy_timeout: float = 10.0


LIKE_ROCKETMQ: Final = BrokerTiming()
