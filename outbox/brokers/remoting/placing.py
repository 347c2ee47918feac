"""Where the messages of a batch go: to queues that may be written, at brokers that answered lately."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from outbox.brokers.base import Outage, Outgoing
from outbox.brokers.remoting.breakers import Breakers
from outbox.brokers.remoting.connections import RemotingError
from outbox.brokers.remoting.route import Queue, Route
from outbox.brokers.remoting.routes import NoRoute, Routes


@dataclass(slots=True)
class Share:
    """The messages of one batch that go to one broker."""

    broker: str
    address: str
    #: Place in the batch, message, queue.
    items: list[tuple[int, Outgoing, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The queues of one topic, for one batch."""

    route: Route
    usable: Sequence[Queue]
    #: Of brokers that failed: at each of them one message may find out whether it takes any again.
    doubtful: list[Queue] = field(default_factory=list)


class Placing:
    """Chooses queues in turn; safe to use from several threads.

    A message of a lane goes to the lane's queue or nowhere: another queue would end its order.
    """

    def __init__(self, routes: Routes, breakers: Breakers) -> None:
        self._routes = routes
        self._breakers = breakers
        self._turn = itertools.count()

    def share(self, messages: Sequence[Outgoing], until: float) -> tuple[Sequence[Share], dict[int, Outage]]:
        """The messages by broker, and by place in the batch why the others can go nowhere."""
        shares: dict[str, Share] = {}
        nowhere: dict[int, Outage] = {}
        choices: dict[str, _Choice | Outage] = {}
        self._routes.freshen(list(dict.fromkeys([message.topic for message in messages])), until)
        nobody = cache(self._nobody)
        for index, message in enumerate(messages):
            choice = choices.get(message.topic)
            if choice is None:
                choice = choices[message.topic] = self._choose(message.topic, until, nobody)
            if isinstance(choice, Outage):
                nowhere[index] = choice
                continue
            queue = self._queue(message, choice)
            if queue is None:
                nowhere[index] = Outage(f"lane {message.lane}: the broker of its queue is away", partial=True)
                continue
            share = shares.get(queue.address)
            if share is None:
                share = shares[queue.address] = Share(queue.broker, queue.address)
            share.items.append((index, message, queue.queue_id))
        return list(shares.values()), nowhere

    def is_elsewhere(self, address: str) -> bool:
        """Whether a broker is known that has not failed lately, beside the one at ``address``."""
        return any(other != address and self._breakers.closed(other) for other in self._routes.masters())

    def _queue(self, message: Outgoing, choice: _Choice) -> Queue | None:
        """None: the lane's broker is away, and others are not."""
        if message.lane is not None:
            queue = choice.route.lane(message.lane)
            return queue if self._is_open_to(queue.address) else None
        while choice.doubtful:
            queue = choice.doubtful.pop()
            if self._breakers.probes(queue.address):
                return queue
        return choice.usable[next(self._turn) % len(choice.usable)]

    def _is_open_to(self, address: str) -> bool:
        """Where no broker is left, all are tried: whether any is back the caller finds out."""
        breakers = self._breakers
        return (
            breakers.all_closed()
            or breakers.closed(address)
            or breakers.probes(address)
            or not self.is_elsewhere(address)
        )

    def _choose(self, topic: str, until: float, nobody: Callable[[], str]) -> _Choice | Outage:
        """The topic's queues, or why there is none to write to.

        A topic without a route is an outage of that topic, not a refusal: a name server forgets a topic together with
        the last broker that has it, so its "no such topic" cannot be told from "its broker is down". Only a broker
        that is asked to store the message knows, and what it refuses is counted. A topic without a writable queue is
        an outage as well: its master is down, or an operator has closed it for a while.
        """
        try:
            route = self._routes.route(topic, until)
        except RemotingError as problem:
            return Outage(str(problem))
        except NoRoute as problem:
            return _unknown(problem, nobody())
        if not route.writable:
            return Outage(
                f"topic {topic}: no queue is writable (broker's master down, or perm without W)", partial=True
            )
        if self._breakers.all_closed():
            return _Choice(route, route.writable)
        usable = [queue for queue in route.writable if self._breakers.closed(queue.address)]
        if not usable:
            return _Choice(route, route.writable)
        others = {queue.address: queue for queue in route.writable if queue not in usable}
        return _Choice(route, usable, list(others.values()))

    def _nobody(self) -> str:
        """Why no broker at all is known there; "": some are."""
        try:
            return "" if self._routes.brokers() else "no broker is registered there"
        except RemotingError as trouble:
            return str(trouble)


def _unknown(problem: NoRoute, nobody: str) -> Outage:
    """``nobody``: why no broker at all is known; "": some are."""
    if nobody:
        return Outage(f"{problem}; {nobody}")
    remedy = "create it (mqadmin updateTopic), or bring back the broker that has it"
    return Outage(f"{problem}; {remedy}", partial=True)
