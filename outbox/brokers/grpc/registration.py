"""Stays registered at the proxies of some topics, in the role of a producer or of a consumer; mends what breaks."""

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final

from grpc.aio import AioRpcError

from outbox.brokers.grpc.channels import Channels, Unreachable
from outbox.brokers.grpc.routes import NoRoute, Reachable, Routes
from outbox.brokers.grpc.streams import WITHIN, OnQuestion, Role, Stream
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds between two looks at the streams: the client's own producer looks once in five minutes.
_TICK: Final = 1.0
#: Seconds to the next look while topics are told and not acknowledged.
_SOON: Final = 0.1
#: Seconds between two looks at the topics' routes.
_ROUTES_EVERY: Final = 10.0
_CLOSING: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Map:
    """The topics that have a route, and the endpoints that lead to them, as of a moment."""

    wanted: frozenset[str]
    topics: frozenset[str]
    endpoints: Mapping[str, Any]
    at: float

    def fits(self, wanted: frozenset[str]) -> bool:
        """Whether it was drawn for the same topics, lately."""
        return self.wanted == wanted and monotonic() - self.at < _ROUTES_EVERY


class Registration:
    """One task on the event loop, and a stream to every proxy of the topics."""

    def __init__(self, channels: Channels, routes: Routes[Any], role: Role, on_question: OnQuestion) -> None:
        self._channels = channels
        self._routes: Routes[Reachable] = routes
        self._role = role
        self._on_question = on_question
        self._streams: dict[str, Stream] = {}
        self._wanted: frozenset[str] | None = None
        self._map: _Map | None = None
        self._starting = threading.Lock()
        self._started = False
        self._wake = asyncio.Event()
        self._stopped = False
        self._trouble = ""

    def register(self, topics: frozenset[str]) -> None:
        """Replaces the topics; the first call starts the task."""
        with self._starting:
            self._wanted = topics
            if not self._started:
                self._started = True
                self._channels.run(self._run())
        self._channels.run(self._awake())

    def is_ready(self) -> bool:
        """Whether all proxies of the topics have acknowledged them, on streams that live."""
        wanted, drawn, streams = self._wanted, self._map, list(self._streams.values())
        if wanted is None or drawn is None or drawn.wanted != wanted or not streams:
            return False
        return all(stream.holds(drawn.topics) for stream in streams)

    def holds(self, topic: str, endpoints: Any) -> bool:
        """Whether this proxy has acknowledged the topic."""
        drawn, stream = self._map, self._streams.get(endpoints.facade)
        return drawn is not None and stream is not None and topic in drawn.topics and stream.holds(drawn.topics)

    def stop(self) -> None:
        """Ends task and streams; the proxies are told, so that they turn to others."""
        self._stopped = True
        self._wanted = None
        if not self._started:
            return
        try:
            self._channels.run(self._leave()).result(_CLOSING)
        except (TimeoutError, CancelledError) as problem:
            log.warning("the streams to the proxies did not end in time: %r", problem)

    async def _awake(self) -> None:
        self._wake.set()

    async def _leave(self) -> None:
        self._wake.set()
        await asyncio.gather(*(stream.leave() for stream in self._streams.values()))

    async def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                await self._look()
                self._tell_trouble("")
            except (Unreachable, NoRoute, AioRpcError, TimeoutError) as problem:
                self._tell_trouble(_words(problem))
            except Exception as problem:
                self._trouble = repr(problem)
                log.exception("a look at the streams to the proxies failed; the next one is in %.0f s", _TICK)
            await self._rest(_TICK if self._trouble or self.is_ready() else _SOON)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _tell_trouble(self, trouble: str) -> None:
        """Says what is wrong when it changes, not once a second."""
        if trouble and trouble != self._trouble:
            log.warning("%s: %s", self._role.without, trouble)
        self._trouble = trouble

    async def _look(self) -> None:
        """Draws the map where it is old, opens streams that are missing or broken, tends them all."""
        wanted = self._wanted
        if wanted is None:
            return
        if self._map is None or not self._map.fits(wanted):
            self._map = await self._draw(wanted)
        drawn = self._map
        for facade in [facade for facade in self._streams if facade not in drawn.endpoints]:
            await self._streams.pop(facade).leave()
        problems = await asyncio.gather(
            *(self._tend(facade, endpoints, drawn.topics) for facade, endpoints in drawn.endpoints.items()),
            return_exceptions=True,
        )
        for problem in filter(None, problems):
            raise problem

    async def _draw(self, wanted: frozenset[str]) -> _Map:
        """Topics without a route are left out; the proxy that is dialled is always among the endpoints."""
        access_point = self._channels.access_point
        await self._channels.get(access_point).ready(monotonic() + WITHIN)
        endpoints = {access_point.facade: access_point}
        found = set()
        for topic in sorted(wanted):
            try:
                route = await self._routes.route(topic, monotonic() + WITHIN)
            except NoRoute as missing:
                log.info("%s: %s", self._role.without, missing)
                continue
            found.add(topic)
            endpoints.update((each.facade, each) for each in route.endpoints)
        return _Map(wanted, frozenset(found), endpoints, monotonic())

    async def _tend(self, facade: str, endpoints: Any, topics: frozenset[str]) -> None:
        stream = self._streams.get(facade)
        if stream is None or stream.ended:
            await self._channels.get(endpoints).ready(monotonic() + WITHIN)
            stream = self._streams[facade] = Stream(self._channels, endpoints, self._role, self._on_question)
        try:
            await stream.tend(topics)
        except (AioRpcError, TimeoutError, asyncio.InvalidStateError):
            # Whatever ails it, a new connection is the cure.
            await stream.close()
            await self._channels.drop(stream.channel)
            raise


def _words(problem: BaseException) -> str:
    return f"{problem.code().name}: {problem.details()}" if isinstance(problem, AioRpcError) else repr(problem)
