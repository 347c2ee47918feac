"""Channels to proxies: one HTTP/2 connection each, on the client's event loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import grpc
from grpc import aio

from outbox.brokers.grpc.access import Access, Tls
from outbox.brokers.grpc.library import (
    ClientConfiguration,
    ClientId,
    Credentials,
    MessagingServiceStub,
    QueryRouteRequest,
    RpcEndpoints,
    Signature,
    event_loop,
)
from outbox.clock import monotonic

Result = TypeVar("Result")

#: No retries below us (one wire attempt per half), no limit on sizes (the proxy has its own), a connection that no
#: other client shares, and a proxy that comes back is found within two seconds.
_OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
#: Seconds for which the reason of a failed connection is not asked for again.
_REASON_FRESH: Final = 1.0


class Unreachable(Exception):
    """No connection to the proxy within the time: nothing was sent."""


class Channel:
    """One connection to a proxy (or to one of several under one name)."""

    def __init__(self, endpoints: Any, tls: Tls | None) -> None:
        """To be called on the event loop; connects when it is first used."""
        self.name = str(endpoints)
        if tls is None:
            self._channel = aio.insecure_channel(endpoints.facade, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
            self._channel = aio.secure_channel(endpoints.facade, credentials, _OPTIONS)
        self.stub = MessagingServiceStub(self._channel)
        self._failure = ("", 0.0)

    async def ready(self, until: float) -> None:
        """Returns once there is a connection; ``Unreachable`` where it fails or the time is over."""
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                raise Unreachable(f"proxy {self.name}: no connection: {await self._why(until)}")
            try:
                async with asyncio.timeout(until - monotonic()):
                    await self._channel.wait_for_state_change(state)
            except TimeoutError:
                raise Unreachable(f"proxy {self.name}: no connection in time") from None
            state = self._channel.get_state(try_to_connect=True)

    async def _why(self, until: float) -> str:
        """Why there is no connection, which only a call is told: one that asks for nothing; kept for a second."""
        reason, at = self._failure
        if monotonic() - at > _REASON_FRESH:
            self._failure = (reason or "it failed", monotonic())
            try:
                await self.stub.QueryRoute(QueryRouteRequest(), timeout=max(0.0, until - monotonic()))
            except aio.AioRpcError as error:
                self._failure = (error.details() or error.code().name, monotonic())
        return self._failure[0]

    async def close(self) -> None:
        """Ends the connection; calls that wait for an answer are cancelled, and what is unsent is dropped."""
        await self._channel.close()


class Channels:
    """The channels of one client; ``run`` is safe to use from several threads, the rest belongs on the event loop."""

    def __init__(self, access: Access) -> None:
        """``ValueError`` in a forked child (see ``event_loop``), and for an address that cannot be read."""
        self._loop = event_loop()
        self._access = access
        credentials = Credentials(access.access_key, access.secret_key)
        self._configuration = ClientConfiguration(access.address, credentials)
        self.access_point: Any = self._configuration.rpc_endpoints
        self.client_id: str = ClientId().client_id
        self._open: dict[str, Channel] = {}
        self._endpoints: dict[str, Any] = {}
        self._closed = False

    def run(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Starts a coroutine on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def get(self, endpoints: Any) -> Channel:
        """The channel to these endpoints; ``Unreachable`` after ``close``."""
        if self._closed:
            raise Unreachable(f"proxy {endpoints}: this client is closed")
        channel = self._open.get(endpoints.facade)
        if channel is None:
            self._endpoints[endpoints.facade] = endpoints
            channel = self._open[endpoints.facade] = Channel(endpoints, self._access.tls)
        return channel

    def known(self, facade: str) -> Channel:
        """The channel to endpoints that ``get`` has seen; ``Unreachable`` where it has not."""
        if facade not in self._endpoints:
            raise Unreachable(f"proxy {facade}: not one of ours")
        return self.get(self._endpoints[facade])

    async def drop(self, channel: Channel) -> None:
        """Ends this connection; the next call makes another one."""
        for facade, known in list(self._open.items()):
            if known is channel:
                del self._open[facade]
        await channel.close()

    async def close(self) -> None:
        """Ends all connections, for good."""
        self._closed = True
        while self._open:
            await self._open.popitem()[1].close()

    def metadata(self) -> Any:
        """What goes with every call: who we are, and the signature."""
        return Signature.metadata(self._configuration, self.client_id)


def endpoints_of(message: Any) -> Any:
    """Endpoints as the protocol tells them, in the client's form (``facade`` is what gRPC dials)."""
    return RpcEndpoints(message)
