"""A proxy that answers as the test says: the protocol's service in this process, on a real port."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from rocketmq.grpc_protocol import (
    Code,
    HeartbeatRequest,
    MessageType,
    Permission,
    Status,
    TelemetryCommand,
    service_pb2,
    service_pb2_grpc,
)

from tests.services.ports import free_port

Method = Callable[[Any, grpc.ServicerContext], Any]


class ScriptedProxy(service_pb2_grpc.MessagingServiceServicer):  # type: ignore[misc]  # generated, without types
    """Stores and ends everything unless its ``on_…`` functions say otherwise; remembers what it was asked."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """``credentials``: TLS."""
        self._credentials = credentials
        self.sent: list[Any] = []
        self.ended: list[Any] = []
        self.peers: list[str] = []
        #: The topics of each settings command that came in.
        self.told: list[tuple[str, ...]] = []
        #: The same for each stream.
        self.told_by_stream: list[list[tuple[str, ...]]] = []
        self.left = 0
        self.on_send: Method = lambda request, _: stored(request)
        self.on_end: Method = lambda *_: service_pb2.EndTransactionResponse(status=status(Code.OK))
        self.on_route: Method = lambda request, _: self.route(request, MessageType.TRANSACTION)
        self.on_heartbeat: Method = lambda *_: service_pb2.HeartbeatResponse(status=status(Code.OK))
        #: What each ReceiveMessage is answered with; none: it waits until its client ends it.
        self.deliveries: queue.Queue[list[Any]] = queue.Queue()
        self.on_receive: Callable[[Any, grpc.ServicerContext], Iterator[Any]] = lambda _, context: self._poll(context)
        self.on_ack: Method = lambda *_: service_pb2.AckMessageResponse(status=status(Code.OK))
        self.on_change: Method = lambda *_: service_pb2.ChangeInvisibleDurationResponse(
            status=status(Code.OK), receipt_handle="renewed"
        )
        self.on_bury: Method = lambda *_: service_pb2.ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))
        #: What it says of a consumer group, whatever the consumer says.
        self.fifo = False
        self.received: list[Any] = []
        self.acknowledged: list[Any] = []
        self.changed: list[Any] = []
        self.buried: list[Any] = []
        #: The settings, heartbeats and farewells that came in.
        self.settings: list[Any] = []
        self.beats: list[Any] = []
        self.farewells: list[Any] = []
        #: Whether settings are answered.
        self.on_settings: Callable[[], bool] = lambda: True
        self.streams_opened = 0
        self._streams: list[queue.Queue[Any]] = []
        self._start()

    def _start(self, port: int | None = None) -> None:
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_MessagingServiceServicer_to_server(self, self._server)
        # Not one of the system's choice, which it may give to somebody's connection while this server is away.
        address = f"127.0.0.1:{free_port() if port is None else port}"
        if self._credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self._credentials)
        self._server.start()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Breaks all connections; the port is free then."""
        self.break_streams()
        self._server.stop(grace=0).wait()

    def restart(self) -> None:
        """Comes back on its port and knows nobody."""
        self.stop()
        self._start(self.port)

    def break_streams(self) -> None:
        """Ends the telemetry streams and nothing else: a client may open the next one meanwhile."""
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.put(None)

    def ask(self, topic: str, half_id: str, **properties: str) -> None:
        """Asks the newest stream what became of a half; a topic's part before ``%`` is told apart, as its namespace."""
        command = TelemetryCommand()
        check = command.recover_orphaned_transaction_command
        check.transaction_id = half_id
        namespace, _, name = topic.rpartition("%")
        check.message.topic.name = name
        check.message.topic.resource_namespace = namespace
        check.message.system_properties.message_id = half_id
        check.message.user_properties.update(properties)
        self._streams[-1].put(command)

    def route(self, request: Any, *types: Any) -> Any:
        """One queue, behind this proxy."""
        answer = service_pb2.QueryRouteResponse(status=status(Code.OK))
        found = answer.message_queues.add()
        found.permission = Permission.READ_WRITE
        found.accept_message_types.extend(types)
        found.broker.name = "broker-a"
        found.broker.endpoints.scheme = 1  # AddressScheme.IPv4
        address = found.broker.endpoints.addresses.add()
        address.host, address.port = "127.0.0.1", self.port
        return answer

    # The service, by the protocol's names.

    def QueryRoute(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """The topic's route."""
        return self.on_route(request, context)

    def SendMessage(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Stores a message."""
        self.sent += request.messages
        self.peers.append(context.peer())
        return self.on_send(request, context)

    def EndTransaction(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Ends a half."""
        self.ended.append(request)
        return self.on_end(request, context)

    def Heartbeat(self, request: HeartbeatRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Still there."""
        self.beats.append(request)
        return self.on_heartbeat(request, context)

    def NotifyClientTermination(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Gone."""
        self.left += 1
        self.farewells.append(request)
        return service_pb2.NotifyClientTerminationResponse(status=status(Code.OK))

    def ReceiveMessage(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Delivers."""
        self.received.append(request)
        yield from self.on_receive(request, context)

    def AckMessage(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Takes a message off."""
        self.acknowledged.append(request)
        return self.on_ack(request, context)

    def ChangeInvisibleDuration(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Renews a delivery, or gives it back."""
        self.changed.append(request)
        return self.on_change(request, context)

    def ForwardMessageToDeadLetterQueue(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Buries a message."""
        self.buried.append(request)
        return self.on_bury(request, context)

    def _poll(self, context: grpc.ServicerContext) -> Iterator[Any]:
        while context.is_active():
            try:
                answers = self.deliveries.get(timeout=0.05)
            except queue.Empty:
                continue
            if context.is_active():
                yield from answers
            else:
                self.deliveries.put(answers)
            return

    def Telemetry(self, commands: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Repeats settings as the proxy does, and passes checks on."""
        outgoing: queue.Queue[Any] = queue.Queue()
        self._streams.append(outgoing)
        self.streams_opened += 1
        told: list[tuple[str, ...]] = []
        self.told_by_stream.append(told)
        context.add_callback(lambda: outgoing.put(None))
        threading.Thread(target=self._hear, args=(commands, outgoing, told), daemon=True).start()
        yield from iter(outgoing.get, None)

    def _hear(self, commands: Iterator[Any], outgoing: "queue.Queue[Any]", told: list[tuple[str, ...]]) -> None:
        try:
            for command in commands:
                self.settings.append(command.settings)
                told.append(tuple(topic.name for topic in command.settings.publishing.topics))
                self.told.append(told[-1])
                if command.settings.HasField("subscription"):
                    command.settings.subscription.fifo = self.fifo
                if self.on_settings():
                    outgoing.put(TelemetryCommand(status=status(Code.OK), settings=command.settings))
        except grpc.RpcError:
            return  # the client has gone


def status(code: Any, message: str = "") -> Any:
    """A status of the protocol."""
    return Status(code=code, message=message)


def stored(request: Any) -> Any:
    """All messages of the request, as halves under their own ids."""
    answer = service_pb2.SendMessageResponse(status=status(Code.OK))
    for message in request.messages:
        name = message.system_properties.message_id
        answer.entries.add(status=status(Code.OK), message_id=name, transaction_id=name)
    return answer


def refused(code: Any, message: str) -> Method:
    """Answers every message with a status and no entry."""
    return lambda *_: service_pb2.SendMessageResponse(status=status(code, message))
