"""The embedded broker: RocketMQ's transactions and consumer groups in one SQLite file, for first runs and tests.

There is no server: any number of processes on one host share the file, and whoever touches it does the broker's
housekeeping. While nobody touches it the broker stands still, as a stopped one would.
"""

from outbox.brokers.embedded.broker import EmbeddedBroker
from outbox.brokers.embedded.inspect import EmbeddedInspector, OpenHalf, VisibleMessage
from outbox.brokers.embedded.source import EmbeddedSource
from outbox.brokers.embedded.storefile import Unavailable
from outbox.brokers.embedded.timing import LIKE_ROCKETMQ, BrokerTiming

__all__ = [
    "LIKE_ROCKETMQ",
    "BrokerTiming",
    "EmbeddedBroker",
    "EmbeddedInspector",
    "EmbeddedSource",
    "OpenHalf",
    "Unavailable",
    "VisibleMessage",
]
