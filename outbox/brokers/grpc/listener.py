"""Stays registered at the proxies of some topics, so that they ask us about halves; mends what breaks."""

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final

from grpc.aio import AioRpcError

from outbox.brokers.base import Answer, Check, Ended, OnCheck
from outbox.brokers.grpc.channels import Channel, Channels, Unreachable
from outbox.brokers.grpc.routes import NoRoute, Routes
from outbox.brokers.grpc.streams import WITHIN, Stream
from outbox.brokers.grpc.transactions import Transactions, unanswered
from outbox.brokers.grpc.workers import Workers
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation

log = logging.getLogger(__name__)

#: Seconds between two looks at the streams: the client's own producer looks once in five minutes.
_TICK: Final = 1.0
#: Seconds to the next look while topics are told and not acknowledged.
_SOON: Final = 0.1
#: Seconds between two looks at the topics' routes.
_ROUTES_EVERY: Final = 10.0
_CLOSING: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Subscription:
    topics: frozenset[str]
    on_check: OnCheck


@dataclass(frozen=True, slots=True)
class _Map:
    """The topics that have a route, and the endpoints that lead to them, as of a moment."""

    subscription: _Subscription
    topics: frozenset[str]
    endpoints: Mapping[str, Any]
    at: float

    def fits(self, subscription: _Subscription) -> bool:
        """Whether it was drawn for the same topics, lately."""
        return self.subscription.topics == subscription.topics and monotonic() - self.at < _ROUTES_EVERY


class Listener:
    """One task on the event loop; checks go from the streams to ``Workers``."""

    def __init__(self, channels: Channels, transactions: Transactions) -> None:
        self._channels = channels
        self._routes = Routes(channels)
        self._transactions = transactions
        self._streams: dict[str, Stream] = {}
        self._subscription: _Subscription | None = None
        self._map: _Map | None = None
        self._starting = threading.Lock()
        self._workers: Workers | None = None
        self._wake = asyncio.Event()
        self._stopped = False
        self._trouble = ""

    def listen(self, topics: Collection[str], on_check: OnCheck) -> None:
        """Replaces what is listened to; the first call starts task and threads."""
        with self._starting:
            self._subscription = _Subscription(frozenset(topics), on_check)
            if self._workers is None:
                self._workers = Workers()
                self._channels.run(self._run())
        self._channels.run(self._awake())

    def is_ready(self) -> bool:
        """Whether all proxies of the topics have acknowledged them, on streams that live."""
        subscription, drawn, streams = self._subscription, self._map, list(self._streams.values())
        if subscription is None or drawn is None or drawn.subscription.topics != subscription.topics or not streams:
            return False
        return all(stream.holds(drawn.topics) for stream in streams)

    def stop(self) -> None:
        """Ends task, threads and streams; the proxies are told, so that they ask others."""
        self._stopped = True
        self._subscription = None
        if self._workers is None:
            return
        self._workers.stop()
        try:
            self._channels.run(self._leave()).result(_CLOSING)
        except (TimeoutError, CancelledError) as problem:
            log.warning("the streams that bring checks did not end in time: %r", problem)

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
                log.exception("a look at the streams that bring checks failed; the next one is in %.0f s", _TICK)
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
            log.warning("no checks are heard: %s", trouble)
        self._trouble = trouble

    async def _look(self) -> None:
        """Draws the map where it is old, opens streams that are missing or broken, tends them all."""
        subscription = self._subscription
        if subscription is None:
            return
        if self._map is None or not self._map.fits(subscription):
            self._map = await self._draw(subscription)
        drawn = self._map
        for facade in [facade for facade in self._streams if facade not in drawn.endpoints]:
            await self._streams.pop(facade).leave()
        problems = await asyncio.gather(
            *(self._tend(facade, endpoints, drawn.topics) for facade, endpoints in drawn.endpoints.items()),
            return_exceptions=True,
        )
        for problem in filter(None, problems):
            raise problem

    async def _draw(self, subscription: _Subscription) -> _Map:
        """Topics without a route are left out; the proxy that is dialled is always among the endpoints."""
        access_point = self._channels.access_point
        await self._channels.get(access_point).ready(monotonic() + WITHIN)
        endpoints = {access_point.facade: access_point}
        found = set()
        for topic in sorted(subscription.topics):
            try:
                route = await self._routes.route(topic, monotonic() + WITHIN)
            except NoRoute as missing:
                log.info("no checks are heard about %s", missing)
                continue
            found.add(topic)
            endpoints.update((each.facade, each) for each in route.endpoints)
        return _Map(subscription, frozenset(found), endpoints, monotonic())

    async def _tend(self, facade: str, endpoints: Any, topics: frozenset[str]) -> None:
        stream = self._streams.get(facade)
        if stream is None or stream.ended:
            await self._channels.get(endpoints).ready(monotonic() + WITHIN)
            stream = self._streams[facade] = Stream(self._channels, endpoints, self._on_question)
        try:
            await stream.tend(topics)
        except (AioRpcError, TimeoutError, asyncio.InvalidStateError):
            # Whatever ails it, a new connection is the cure.
            await stream.close()
            await self._channels.drop(stream.channel)
            raise

    def _on_question(self, check: Check, channel: Channel) -> None:
        subscription, workers = self._subscription, self._workers
        if subscription is None or workers is None:
            return
        on_check = subscription.on_check
        workers.put(lambda: self._ask(on_check, check, channel), f"a check of half {check.half.half_id}")

    def _ask(self, on_check: OnCheck, check: Check, channel: Channel) -> None:
        try:
            on_check(check, self._answer(check, channel))
        except Exception:
            log.exception("check of half %s of topic %s failed: left open", check.half.half_id, check.half.topic)

    def _answer(self, check: Check, channel: Channel) -> Answer:
        unused = [check]

        def answer(verdict: Verdict, until: float) -> Ended:
            """Ends the half, once; UNKNOWN is said by silence, and the broker asks again.

            The proxy takes as many ends as there were checks lately, so a second COMMIT would be a second message.
            """
            if verdict is Verdict.UNKNOWN:
                return Ended(Confirmation.CONFIRMED)
            if not unused:
                return unanswered("this check was answered before")
            return self._transactions.answer(unused.pop().half, channel, verdict, until)

        return answer


def _words(problem: BaseException) -> str:
    return f"{problem.code().name}: {problem.details()}" if isinstance(problem, AioRpcError) else repr(problem)
