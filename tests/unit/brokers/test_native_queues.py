"""The number of a queue in the client's list, while that list and ours differ."""

from dataclasses import dataclass, field

from outbox.brokers.native.queues import QueueLists
from outbox.brokers.remoting.route import Queue, Route
from outbox.brokers.remoting.routes import NoRoute


@dataclass(slots=True)
class FakeRoutes:
    """Routes to these brokers, two queues each."""

    brokers: list[str] = field(default_factory=list)

    def route(self, topic: str, until: float) -> Route:
        """The route now."""
        if not self.brokers:
            raise NoRoute(topic)
        return Route(tuple(Queue(name, f"{name}:1", number) for name in self.brokers for number in range(2)), {}, {})


def lists(routes: FakeRoutes) -> QueueLists:
    """Lists over the fake."""
    return QueueLists(routes)  # type: ignore[arg-type]


def test_a_list_like_ours_is_counted_through() -> None:
    # Given two brokers; When the client knows as many queues; Then the number is the place in the list
    known = lists(FakeRoutes(["a", "b"]))
    known.remember("payments")
    assert [known.number("payments", ("b", number), 4) for number in range(2)] == [2, 3]


def test_the_client_may_still_have_an_earlier_list() -> None:
    # Given a broker that has gone
    routes = FakeRoutes(["a", "b"])
    known = lists(routes)
    known.remember("payments")
    routes.brokers = ["b"]
    known.remember("payments")
    # When the client has heard of it, and when it has not; Then the queue is the same one
    assert known.number("payments", ("b", 1), 2) == 1
    assert known.number("payments", ("b", 1), 4) == 3


def test_a_list_that_nobody_knows_still_has_a_queue() -> None:
    # Given no route, and a list of another length; When asked; Then the number is within the list
    known = lists(FakeRoutes())
    known.remember("payments")
    assert known.number("payments", ("b", 7), 3) in range(3)
