"""What is said about a message before the client sees it: it does not tell a refusal from an outage by itself."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from outbox.brokers.base import Outage, Outgoing, Refused
from outbox.brokers.native.content import flaw_of
from outbox.brokers.remoting.connections import RemotingError
from outbox.brokers.remoting.routes import NoRoute, Queue, Route, Routes


@dataclass(frozen=True, slots=True)
class Placed:
    """A message that can be sent, and where to."""

    message: Outgoing
    #: Place in the sorted list of the topic's writable queues, which the client keeps in the same order.
    index: int
    broker: str


class Vetting:
    """Judges messages by their content and by the routes of their topics; safe to use from several threads."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._turn = itertools.count()

    def judge(self, messages: Sequence[Outgoing], until: float) -> list[Placed | Refused | Outage]:
        """A queue for each message, or why it cannot be sent now; in order."""
        topics = {topic: self._judge_topic(topic, until) for topic in {message.topic for message in messages}}
        return [flaw_of(message) or self._place(message, topics[message.topic]) for message in messages]

    def _place(self, message: Outgoing, topic: Route | Refused | Outage) -> Placed | Refused | Outage:
        """Lanes have the queue that they have in ``outbox.brokers.remoting``."""
        if not isinstance(topic, Route):
            return topic
        queue: Queue | None = None if message.lane is None else topic.lane(message.lane)
        index = next(self._turn) % len(topic.writable) if queue is None else topic.writable.index(queue)
        return Placed(message, index, topic.writable[index].broker)

    def _judge_topic(self, topic: str, until: float) -> Route | Refused | Outage:
        """A cluster that has brokers and does not know the topic refuses it (the client would take another's route)."""
        try:
            route = self._routes.route(topic, until)
        except NoRoute as problem:
            return self._judge_cluster(problem)
        except RemotingError as problem:
            return Outage(str(problem))
        if route.writable:
            return route
        return Outage(f"topic {topic}: no queue is writable (broker's master down, or perm without W)")

    def _judge_cluster(self, no_route: NoRoute) -> Refused | Outage:
        try:
            brokers = self._routes.brokers()
        except RemotingError as problem:
            return Outage(str(problem))
        if brokers:
            return Refused(f"{no_route}; create it (mqadmin updateTopic)")
        return Outage(f"{no_route}; no broker is registered there")
