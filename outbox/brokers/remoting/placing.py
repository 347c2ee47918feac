"""Where the messages of a batch go: to queues that may be written, at brokers that answered lately."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from outbox.brokers.base import Outage, Outgoing
from outbox.brokers.remoting.connections import RemotingError
from outbox.brokers.remoting.routes import NoRoute, Queue, Route, Routes
from outbox.clock import monotonic

#: Seconds for which a broker that failed gets no message that could go elsewhere: at first, and at most.
_AVOIDED: Final = 1.0
_AVOIDED_MOST: Final = 30.0


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


@dataclass(frozen=True, slots=True)
class _Avoided:
    until: float
    pause: float


class Placing:
    """Chooses queues in turn; safe to use from several threads.

    A message of a lane goes to the lane's queue, whatever its broker does: another queue would end its order.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._turn = itertools.count()
        self._avoided: dict[str, _Avoided] = {}

    def share(self, messages: Sequence[Outgoing], until: float) -> tuple[Sequence[Share], dict[int, Outage]]:
        """The messages by broker, and by place in the batch why the others can go nowhere."""
        shares: dict[str, Share] = {}
        nowhere: dict[int, Outage] = {}
        choices: dict[str, _Choice | Outage] = {}
        for index, message in enumerate(messages):
            choice = choices.get(message.topic)
            if choice is None:
                choice = choices[message.topic] = self._choose(message.topic, until)
            if isinstance(choice, Outage):
                nowhere[index] = choice
                continue
            queue = self._queue(message, choice)
            share = shares.get(queue.address)
            if share is None:
                share = shares[queue.address] = Share(queue.broker, queue.address)
            share.items.append((index, message, queue.queue_id))
        return list(shares.values()), nowhere

    def failed(self, address: str) -> None:
        """The broker there is away, silent, or takes nothing: others come first for a while, longer each time."""
        now = monotonic()
        before = self._avoided.get(address)
        if before is None:
            self._avoided[address] = _Avoided(now + _AVOIDED, _AVOIDED)
        elif now >= before.until:
            pause = min(_AVOIDED_MOST, 2 * before.pause)
            self._avoided[address] = _Avoided(now + pause, pause)

    def answered(self, address: str) -> None:
        """The broker there stores messages."""
        if self._avoided:
            self._avoided.pop(address, None)

    def is_elsewhere(self, address: str) -> bool:
        """Whether a broker is known that has not failed lately, beside the one at ``address``."""
        now = monotonic()
        return any(other != address and not self._is_avoided(other, now) for other in self._routes.masters())

    def _is_avoided(self, address: str, now: float) -> bool:
        avoided = self._avoided.get(address)
        return avoided is not None and now < avoided.until

    def _queue(self, message: Outgoing, choice: _Choice) -> Queue:
        if message.lane is not None:
            return choice.route.lane(message.lane)
        return choice.usable[next(self._turn) % len(choice.usable)]

    def _choose(self, topic: str, until: float) -> _Choice | Outage:
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
            return self._unknown(problem)
        if not route.writable:
            return Outage(
                f"topic {topic}: no queue is writable (broker's master down, or perm without W)", partial=True
            )
        if not self._avoided:
            return _Choice(route, route.writable)
        now = monotonic()
        return _Choice(route, [it for it in route.writable if not self._is_avoided(it.address, now)] or route.writable)

    def _unknown(self, problem: NoRoute) -> Outage:
        try:
            known = self._routes.brokers()
        except RemotingError as trouble:
            return Outage(str(trouble))
        if not known:
            return Outage(f"{problem}; no broker is registered there")
        remedy = "create it (mqadmin updateTopic), or bring back the broker that has it"
        return Outage(f"{problem}; {remedy}", partial=True)
