"""A transport of ours through the broker port: ``python -m benchmarks.clients.port URL THREADS BATCH BODY``."""

import os
import sys

from benchmarks.clients.gate import PROPERTIES, TOPIC, serve
from outbox.brokers.base import Broker, Ending, Outgoing, Stored
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Verdict
from outbox.settings import Settings
from outbox.verdict import Confirmation
from outbox.wiring import open_broker

#: Seconds for the halves of one batch, and for their commits.
TIMEOUT = 10.0


def main() -> None:
    """Serves until standard input ends."""
    url, threads, batch, body = sys.argv[1], *map(int, sys.argv[2:])
    broker = open_broker(Settings(broker_url=url, origin="bench"))
    content = os.urandom(body)
    # A transport whose commits nobody answers has done its part when it has sent them.
    good = {Confirmation.CONFIRMED} if broker.capabilities.confirms else set(Confirmation) - {Confirmation.DENIED}
    serve(lambda: commit(broker, content, batch, good), threads)
    sys.stdout.flush()
    os._exit(0)  # librocketmq may hang at an ordinary exit


def commit(broker: Broker, body: bytes, batch: int, good: set[Confirmation]) -> tuple[int, int]:
    """Half and commit of a batch; committed and failed."""
    outcomes = broker.prepare([_message(body) for _ in range(batch)], TIMEOUT)
    halves = [outcome.half for outcome in outcomes if isinstance(outcome, Stored)]
    ended = broker.resolve([Ending(half, Verdict.COMMIT) for half in halves], monotonic() + TIMEOUT)
    done = sum(each.confirmation in good for each in ended)
    return done, batch - done


def _message(body: bytes) -> Outgoing:
    unique_id = unique_ids.fresh()
    return Outgoing(TOPIC, body, unique_id, f"order-{unique_id}", "paid", {**PROPERTIES, "outbox-key": unique_id})


if __name__ == "__main__":
    main()
