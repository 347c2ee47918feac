"""What is used in place of an inbox, for ``benchmarks.dedup``: ``plain`` does a message's work."""

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import redis

from outbox.brokers.source import Delivery

#: Processes some fresh messages; a side of the comparison.
Side = Callable[[Sequence[Delivery]], None]


def by_hand(plain: Side, url: str) -> Side:
    """SET NX with a time to live, then the work: a crash in between loses the message."""
    client = redis.Redis.from_url(url)

    def run(deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            if client.set(f"naive:{each.keys[0]}", "1", nx=True, ex=86400):
                plain([each])

    return run


def powertools(plain: Side, url: str) -> Side | None:
    """The idempotency utility of aws-lambda-powertools over Redis; None: it is not installed."""
    try:
        idempotency: Any = import_module("aws_lambda_powertools.utilities.idempotency")
        stores: Any = import_module("aws_lambda_powertools.utilities.idempotency.persistence.redis")
    except ModuleNotFoundError:
        return None
    warnings.filterwarnings("ignore", "Couldn't determine the remaining time left")
    layer = stores.RedisCachePersistenceLayer(client=redis.Redis.from_url(url, decode_responses=True))

    def on_paid(event: dict[str, Any]) -> None:
        plain([event["delivery"]])

    config = idempotency.IdempotencyConfig(event_key_jmespath="key")
    wrap = idempotency.idempotent_function(data_keyword_argument="event", persistence_store=layer, config=config)
    wrapped = wrap(on_paid)

    def run(deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            wrapped(event={"key": each.keys[0], "delivery": each})

    return run
