"""The one place where ``rocketmq-python-client`` is imported: its protocol, its signature, its event loop.

The client's own ``Producer`` is not used (``docs/decisions/0007-below-the-grpc-producer.md`` tells why).
``rocketmq-client-python`` owns an import package of the same name; the two share only ``rocketmq/__init__.py``, and
whichever of the two files is there, the modules below are found.
"""

import asyncio
import importlib
import logging
import sys
import types
from typing import Any, Final

_LOG: Final = "rocketmq.v5.log"


def _log_through_logging() -> None:
    """Gives the client a logger that the application configures, unless the application has imported it before.

    The client's own module makes ``~/logs/rocketmq_python`` and opens a file there when it is imported, which fails in
    a container without a writable home.
    """
    if _LOG not in sys.modules:
        module = types.ModuleType(_LOG)
        module.__dict__["logger"] = logging.getLogger("rocketmq-python-client")
        sys.modules[_LOG] = module


_log_through_logging()

# Generated classes: their names come to be at import, so that no checker knows them.
_protocol: Any = importlib.import_module("rocketmq.grpc_protocol")
AckMessageRequest: Any = _protocol.AckMessageRequest
ChangeInvisibleDurationRequest: Any = _protocol.ChangeInvisibleDurationRequest
ClientType: Any = _protocol.ClientType
Code: Any = _protocol.Code
DigestType: Any = _protocol.DigestType
Encoding: Any = _protocol.Encoding
EndTransactionRequest: Any = _protocol.EndTransactionRequest
FilterType: Any = _protocol.FilterType
ForwardMessageToDeadLetterQueueRequest: Any = _protocol.ForwardMessageToDeadLetterQueueRequest
HeartbeatRequest: Any = _protocol.HeartbeatRequest
MessageType: Any = _protocol.MessageType
MessagingServiceStub: Any = _protocol.MessagingServiceStub
NotifyClientTerminationRequest: Any = _protocol.NotifyClientTerminationRequest
Permission: Any = _protocol.Permission
QueryRouteRequest: Any = _protocol.QueryRouteRequest
ReceiveMessageRequest: Any = _protocol.ReceiveMessageRequest
SendMessageRequest: Any = _protocol.SendMessageRequest
TelemetryCommand: Any = _protocol.TelemetryCommand
TransactionResolution: Any = _protocol.TransactionResolution
TransactionSource: Any = _protocol.TransactionSource

_client: Any = importlib.import_module("rocketmq.v5.client")
ClientConfiguration: Any = _client.ClientConfiguration
Credentials: Any = _client.Credentials
_connection: Any = importlib.import_module("rocketmq.v5.client.connection")
RpcEndpoints: Any = _connection.RpcEndpoints
_util: Any = importlib.import_module("rocketmq.v5.util")
ClientId: Any = _util.ClientId
Signature: Any = _util.Signature


def event_loop() -> asyncio.AbstractEventLoop:
    """The client's event loop, in a thread of its own, shared by everything in this process that speaks gRPC.

    ``ValueError`` in a child that was forked after its parent used it: neither the thread nor gRPC survives a fork.
    """
    _connection.RpcClient()
    thread = _connection.RpcClient._io_loop_thread  # the loop says that it runs even where its thread is gone
    if thread is None or not thread.is_alive():
        raise ValueError(
            "rocketmq+grpc: this process was forked after its parent had used gRPC, which does not survive a fork; "
            "start worker processes by spawn, or open the broker in the children only"
        )
    loop: asyncio.AbstractEventLoop = _connection.RpcClient.get_channel_io_loop()
    return loop
