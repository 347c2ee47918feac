"""``rocketmq-python-client`` without a layer of ours.

    python -m benchmarks.clients.plain_grpc ENDPOINT THREADS BODY

COMMIT is answered by the proxy, which does not wait for the broker.
"""

import os
import sys

from grpc.aio import AioRpcError
from rocketmq.grpc_protocol import TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.exception import ClientException
from rocketmq.v5.model import Message
from rocketmq.v5.producer import Producer, TransactionChecker

from benchmarks.clients.gate import PROPERTIES, TOPIC, serve
from outbox.identity import unique_ids


class _CommitAll(TransactionChecker):  # type: ignore[misc]  # ships no types
    def check(self, message: object) -> TransactionResolution:  # noqa: ARG002 -- the base class's signature
        """Every half is meant to be committed."""
        return TransactionResolution.COMMIT


def main() -> None:
    """Serves until standard input ends."""
    endpoint, threads, body = sys.argv[1], *map(int, sys.argv[2:])
    producer = Producer(ClientConfiguration(endpoint, Credentials()), (TOPIC,), _CommitAll())
    producer.startup()
    content = os.urandom(body)

    def work() -> tuple[int, int]:
        """Half and commit of one message."""
        transaction = producer.begin_transaction()
        try:
            producer.send(_message(content), transaction)
            transaction.commit()
        except (ClientException, AioRpcError) as refused:
            print(f"send or commit: {refused}", file=sys.stderr)
            return 0, 1
        return 1, 0

    serve(work, threads)
    sys.stdout.flush()
    os._exit(0)  # halves are ended, and the client's threads are no concern here


def _message(body: bytes) -> Message:
    key = f"order-{unique_ids.fresh()}"
    message = Message()
    message.topic, message.body, message.tag, message.keys = TOPIC, body, "paid", key
    for name, value in {**PROPERTIES, "outbox-key": key}.items():
        message.add_property(name, value)
    return message


if __name__ == "__main__":
    main()
