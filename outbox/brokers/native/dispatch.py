"""Sends batches: to each broker that has not answered lately one message ahead, then the rest at once."""

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from outbox.brokers.base import Outage, Outgoing, Refused, Unknown
from outbox.brokers.native.calls import Calls, Placed
from outbox.brokers.native.content import flaw_of
from outbox.brokers.native.producer import Producer
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.placing import Placing, Share
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.clock import monotonic

#: The queue offset of a stored message, or what else is known of it.
Outcome = int | Refused | Outage | Unknown

_BUSY: Final = Outage("the first message to this broker has not come back in time")


class Dispatch:
    """Safe to use from several threads.

    While the client dials a broker, every other call to it fails at once, and the client does not say that nothing was
    sent. So a broker is dialled by ourselves first: where that fails, nothing has left. Then one message goes ahead,
    and where it is not stored, the others have not left either.
    """

    def __init__(self, connections: Connections, routes: Routes, calls: Calls, producer: Producer) -> None:
        self._connections = connections
        self._routes = routes
        self._placing = Placing(routes)
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
            placed = {sound[place]: it for place, it in self._placed(share).items()}
            known = self._scout(share, placed, properties, until)
            outcomes |= known
            rest |= {index: it for index, it in placed.items() if index not in known}
        outcomes |= self._run(rest, properties, until)
        return [outcomes[index] for index in range(len(messages))]

    def _placed(self, share: Share) -> dict[int, Placed]:
        """By place in the batch; the queue as its number in the sorted list of all, which the client keeps as well."""
        numbers: dict[str, dict[tuple[str, int], int]] = {}
        placed: dict[int, Placed] = {}
        for place, message, queue_id in share.items:
            if message.topic not in numbers:
                numbers[message.topic] = self._numbers(message.topic)
            number = numbers[message.topic].get((share.broker, queue_id), queue_id)
            placed[place] = Placed(message, number, share.address)
        return placed

    def _numbers(self, topic: str) -> dict[tuple[str, int], int]:
        try:
            writable = self._routes.route(topic, monotonic()).writable
        except (RemotingError, NoRoute):
            return {}  # it was there a moment ago
        return {(queue.broker, queue.queue_id): number for number, queue in enumerate(writable)}

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
            first = next(iter(placed))
            ahead = self._run({first: placed[first]}, properties, until)
        except RemotingError as problem:
            self._routes.doubt(share.address)
            return dict.fromkeys(placed, self._outage(share, str(problem)))
        finally:
            self._scouting.release()
        if share.address in self._answering:
            return ahead
        return dict.fromkeys(placed, self._outage(share, "it did not take the first message")) | ahead

    def _outage(self, share: Share, reason: str) -> Outage:
        self._placing.failed(share.address)
        return Outage(f"broker {share.broker}: {reason}", self._placing.is_elsewhere(share.address))

    def _run(self, placed: Mapping[int, Placed], properties: Mapping[str, str], until: float) -> dict[int, Outcome]:
        def call(it: Placed) -> int | Unknown:
            """One blocking call; remembers whether the broker answers."""
            outcome = self._producer.send(it.message, properties, it.queue)
            if isinstance(outcome, int):
                self._answering.add(it.address)
                self._placing.answered(it.address)
            else:
                self._answering.discard(it.address)
            return outcome

        return dict(zip(placed, self._calls.run(call, list(placed.values()), until), strict=True))
