"""``rocketmq-client-python`` without a layer of ours.

    python -m benchmarks.clients.plain_native NAMESRV THREADS BODY LIBRARY

One call is half, local transaction and one-way COMMIT, which is not answered. ``LIBRARY``: path of ``librocketmq.so``.
"""

import ctypes.util
import importlib
import os
import sys
from typing import Any

from benchmarks.clients.gate import PROPERTIES, TOPIC, serve
from outbox.identity import unique_ids


def main() -> None:
    """Serves until standard input ends."""
    namesrv, threads, body, library = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # The package asks it, and knows the loader's own folders alone.
    ctypes.util.find_library = lambda name: library  # noqa: ARG005 -- the function's signature
    native: Any = importlib.import_module("rocketmq.client")
    refused: Any = importlib.import_module("rocketmq.exceptions").RocketMQException
    commit = native.TransactionStatus.COMMIT
    producer = native.TransactionMQProducer("outbox-bench-native", lambda _message: commit)
    producer.set_name_server_address(namesrv)
    producer.start()
    content = os.urandom(body).replace(b"\x00", b"\x01")  # set_body cuts at a zero byte

    def work() -> tuple[int, int]:
        """Half and commit of one message."""
        message = _message(native, content)
        try:
            producer.send_message_in_transaction(message, lambda _message, _arguments: commit)
        except refused as problem:
            print(f"send_message_in_transaction: {problem}", file=sys.stderr)
            return 0, 1
        finally:
            native.dll.DestroyMessage(message)
        return 1, 0

    serve(work, threads)
    sys.stdout.flush()
    os._exit(0)  # an ordinary exit may hang in librocketmq


def _message(native: Any, body: bytes) -> Any:
    key = f"order-{unique_ids.fresh()}"
    message = native.Message(TOPIC)
    message.set_keys(key)
    message.set_tags("paid")
    message.set_body(body)
    for name, value in {**PROPERTIES, "outbox-key": key}.items():
        message.set_property(name, value)
    return message


if __name__ == "__main__":
    main()
