"""Which number a queue has in the client's own list of a topic's queues."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from outbox.brokers.remoting.connections import RemotingError
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.clock import monotonic

#: Name of the broker, and number of the queue there.
QueueName = tuple[str, int]
#: Lists of one topic that are remembered.
_REMEMBERED: Final = 4


class QueueLists:
    """Lists of writable queues as our routes had them of late; safe to use from several threads.

    The client sorts its list as our routes do, but asks for it at other times: for half a minute after a broker has
    come or gone, its list is one of our earlier ones.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._lists: dict[str, deque[Sequence[QueueName]]] = {}

    def remember(self, topic: str) -> None:
        """Takes the list of the topic as it is now."""
        try:
            writable = self._routes.route(topic, monotonic()).writable
        except (RemotingError, NoRoute):
            return  # the earlier ones stay
        now = tuple((queue.broker, queue.queue_id) for queue in writable)
        lists = self._lists.setdefault(topic, deque(maxlen=_REMEMBERED))
        if not lists or lists[0] != now:
            lists.appendleft(now)

    def number(self, topic: str, queue: QueueName, count: int) -> int:
        """The queue's number in the client's list, which has ``count``; if no list is like it, some number."""
        for known in tuple(self._lists.get(topic, ())):
            if len(known) == count and queue in known:
                return known.index(queue)
        return queue[1] % count
