"""Sends batches: to each broker that has not answered lately one message ahead, then the rest at once."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from outbox.brokers.base import Outage, Outgoing, Refused, Unknown
from outbox.brokers.native.calls import Calls, Placed
from outbox.brokers.native.content import flaw_of
from outbox.brokers.native.producer import Producer
from outbox.brokers.native.queues import QueueLists
from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.placing import Placing, Share
from outbox.brokers.remoting.routes import Routes
from outbox.clock import monotonic

#: The queue offset of a stored message, or what else is known of it.
Outcome = int | Refused | Outage | Unknown

#: Messages that go ahead at most: the first may be one that the broker refuses, whatever becomes of the others.
_SCOUTS: Final = 2
_BUSY: Final = Outage("the first message to this broker has not come back in time")


class Dispatch:
    """Safe to use from several threads.

    While the client dials a broker, every other call to it fails at once, and the client does not say that nothing was
    sent. So a broker is dialled by ourselves first: where that fails, nothing has left. Then one message goes ahead,
    or two, and where none is stored, the others have not left either.
    """

    def __init__(
        self, connections: Connections, routes: Routes, calls: Calls, producer: Producer, breakers: Breakers
    ) -> None:
        self._connections = connections
        self._routes = routes
        self._breakers = breakers
        self._placing = Placing(routes, breakers)
        self._queues = QueueLists(routes)
        self._calls = calls
        self._producer = producer
        self._answering: set[str] = set()
        self._scouting = threading.Lock()

    def send(self, messages: Sequence[Outgoing], properties: Mapping[str, str], until: float) -> list[Outcome]:
        """Outcomes in order, by ``until``; ``properties``: beside those of the messages."""
        outcomes: dict[int, Outcome] = {
            index: flaw for index, message in enumerate(messages) if (flaw := flaw_of(message)) is not None
        }
        sound = [index for index in range(len(messages)) if index not in outcomes]
        shares, nowhere = self._placing.share([messages[index] for index in sound], until)
        outcomes |= {sound[place]: outage for place, outage in nowhere.items()}
        rest: dict[int, Placed] = {}
        for share in shares:
            placed = self._placed(share, sound)
            known = self._scout(share, placed, properties, until)
            outcomes |= known
            rest |= {index: it for index, it in placed.items() if index not in known}
        outcomes |= self._run(rest, properties, until)
        return [outcomes[index] for index in range(len(messages))]

    def _placed(self, share: Share, sound: Sequence[int]) -> dict[int, Placed]:
        """The messages of a share by their place in the batch."""
        for topic in {message.topic for _, message, _ in share.items}:
            self._queues.remember(topic)
        return {
            sound[place]: Placed(message, (share.broker, queue_id), share.address)
            for place, message, queue_id in share.items
        }

    def _scout(
        self, share: Share, placed: Mapping[int, Placed], properties: Mapping[str, str], until: float
    ) -> dict[int, Outcome]:
        """The outcome of the first message, if the broker has to be tried; that of all, if it takes none."""
        if share.address in self._answering:
            return {}
        if not self._scouting.acquire(timeout=max(0.0, until - monotonic())):
            return dict.fromkeys(placed, _BUSY)
        try:
            if share.address in self._answering:
                return {}
            self._connections.get(share.address, until)
            ahead = self._run_ahead(placed, properties, until)
        except RemotingError as problem:
            self._routes.doubt(share.address)
            return dict.fromkeys(placed, self._outage(share, str(problem)))
        finally:
            self._scouting.release()
        if share.address in self._answering:
            return ahead
        return dict.fromkeys(placed, self._outage(share, "it did not take the first messages")) | ahead

    def _run_ahead(
        self, placed: Mapping[int, Placed], properties: Mapping[str, str], until: float
    ) -> dict[int, Outcome]:
        """The outcomes of the messages that go ahead, one after another, until one is stored."""
        ahead: dict[int, Outcome] = {}
        for index in list(placed)[:_SCOUTS]:
            ahead |= self._run({index: placed[index]}, properties, until)
            if isinstance(ahead[index], int):
                break
        return ahead

    def _outage(self, share: Share, reason: str) -> Outage:
        self._breakers.failed(share.address)
        return Outage(f"broker {share.broker}: {reason}", self._placing.is_elsewhere(share.address))

    def _run(self, placed: Mapping[int, Placed], properties: Mapping[str, str], until: float) -> dict[int, Outcome]:
        def call(it: Placed) -> int | Unknown:
            """One blocking call; remembers whether the broker answers."""
            choose = partial(self._queues.number, it.message.topic, it.queue)
            outcome = self._producer.send(it.message, properties, choose)
            if isinstance(outcome, int):
                self._answering.add(it.address)
                self._breakers.answered(it.address)
            else:
                self._answering.discard(it.address)
            return outcome

        return dict(zip(placed, self._calls.run(call, list(placed.values()), until), strict=True))
