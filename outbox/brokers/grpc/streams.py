"""The telemetry stream to one proxy: tells it who we are and our topics, and brings what it asks."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from grpc.aio import AioRpcError

from outbox.brokers.grpc.channels import Channel, Channels
from outbox.brokers.grpc.library import Code, HeartbeatRequest, NotifyClientTerminationRequest, TelemetryCommand
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds between heartbeats, as the client's own producer sends them.
HEARTBEAT: Final = 10.0
#: Seconds after which the topics are told again although nothing has changed.
_TOLD_AGAIN: Final = 60.0
#: Seconds after which a registration is no longer taken for granted.
_STALE: Final = 3 * HEARTBEAT
#: Seconds for a call.
WITHIN: Final = 3.0
_STREAM_TIMEOUT: Final = 365 * 86400.0
_SETTINGS_TIMEOUT_SECONDS: Final = 3

#: Called for each ``RecoverOrphanedTransactionCommand``, with the channel that it came by; on the event loop: it must
#: not wait.
OnQuestion = Callable[[Any, Channel], None]


@dataclass(frozen=True, slots=True)
class Role:
    """What we are to a proxy, and the words for it in the log."""

    client_type: Any
    #: The consumer group; "": a producer, which has none.
    group: str
    #: Writes topics into settings.
    describe: Callable[[Any, frozenset[str]], None]
    #: The stream, and what is missing without one.
    stream: str
    without: str
    #: Why what the proxy says of us, in its answer to our settings, does not do; "": it does.
    objection: Callable[[Any], str] = lambda _: ""


class Stream:
    """One stream; when it has ended, another one has to be opened. Belongs on the event loop."""

    def __init__(self, channels: Channels, endpoints: Any, role: Role, on_question: OnQuestion) -> None:
        """``Unreachable`` after the client's close."""
        self.endpoints = endpoints
        self.channel = channels.get(endpoints)
        self._channels = channels
        self._role = role
        self._on_question = on_question
        self._told: frozenset[str] | None = None
        self._told_at = 0.0
        self._answered = True
        self._acknowledged: frozenset[str] | None = None
        self._heartbeat_at = 0.0
        self._call = self.channel.stub.Telemetry(metadata=channels.metadata(), timeout=_STREAM_TIMEOUT)
        self._reader = asyncio.ensure_future(self._read())

    @property
    def ended(self) -> bool:
        """Whether the stream brings nothing any more."""
        return self._reader.done()

    def holds(self, topics: frozenset[str]) -> bool:
        """Whether the proxy has acknowledged these topics, and a heartbeat lately."""
        return not self.ended and self._acknowledged == topics and monotonic() - self._heartbeat_at < _STALE

    async def tend(self, topics: frozenset[str]) -> None:
        """Tells the topics where they are new, and sends a heartbeat where one is due.

        ``TimeoutError`` where the proxy does not answer: it may have lost our end of the stream (``GrpcClientChannel``
        drops it after a failed write) and would bring nothing any more. One question at a time: the proxy answers each
        in a thread of its own, and two first answers at once are such a failed write.
        """
        if not self._answered:
            self._expect_answer()
            return
        if self._told != topics or monotonic() - self._told_at > _TOLD_AGAIN:
            await self._tell(topics)
        if self._acknowledged is not None and monotonic() - self._heartbeat_at > HEARTBEAT:
            await self._beat()

    def _expect_answer(self) -> None:
        if monotonic() - self._told_at > WITHIN:
            raise TimeoutError(f"proxy {self.channel.name} did not answer the settings within {WITHIN:.0f} s")

    async def _tell(self, topics: frozenset[str]) -> None:
        self._told, self._told_at, self._acknowledged, self._answered = topics, monotonic(), None, False
        async with asyncio.timeout(WITHIN):
            await self._call.write(self._settings(topics))

    async def _beat(self) -> None:
        request = HeartbeatRequest()
        request.client_type = self._role.client_type
        request.group.name = self._role.group
        answer = await self.channel.stub.Heartbeat(request, metadata=self._channels.metadata(), timeout=WITHIN)
        if answer.status.code == Code.OK:
            self._heartbeat_at = monotonic()
        else:  # a proxy that does not know us wants to be told again
            log.warning(
                "proxy %s: heartbeat: code %d: %s", self.channel.name, answer.status.code, answer.status.message
            )
            self._told = None

    def _settings(self, topics: frozenset[str]) -> Any:
        command = TelemetryCommand()
        settings = command.settings
        settings.client_type = self._role.client_type
        settings.access_point.CopyFrom(self.endpoints.endpoints)
        settings.request_timeout.seconds = _SETTINGS_TIMEOUT_SECONDS
        self._role.describe(settings, topics)
        return command

    async def _read(self) -> None:
        reason = "the proxy ended it"
        try:
            async for command in self._call:
                self._take(command)
        except AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        log.warning("proxy %s: %s is broken (%s); it is opened again", self.channel.name, self._role.stream, reason)

    def _take(self, command: Any) -> None:
        kind = command.WhichOneof("command")
        if kind == "settings":
            self._acknowledge(command)
        elif kind == "recover_orphaned_transaction_command":
            self._on_question(command.recover_orphaned_transaction_command, self.channel)

    def _acknowledge(self, command: Any) -> None:
        self._answered = True
        status = command.status
        if status.code not in (Code.OK, Code.CODE_UNSPECIFIED):
            log.warning("proxy %s: topics refused: code %d: %s", self.channel.name, status.code, status.message)
        elif objection := self._role.objection(command.settings):
            log.error("proxy %s: %s: %s", self.channel.name, self._role.without, objection)
        else:
            self._acknowledged = self._told

    async def close(self) -> None:
        """Ends the stream."""
        self._reader.cancel()
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def leave(self) -> None:
        """Tells the proxy that it should turn to others, then ends the stream."""
        request = NotifyClientTerminationRequest()
        request.group.name = self._role.group
        try:
            await self.channel.stub.NotifyClientTermination(
                request, metadata=self._channels.metadata(), timeout=WITHIN / 3
            )
        except AioRpcError as error:
            log.info("proxy %s: left without a word: %s", self.channel.name, error.details())
        await self.close()
