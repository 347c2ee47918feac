"""Routes: what is writable, which master is asked, and name servers that fail."""

import pytest

from outbox.brokers.remoting import routes as tested
from outbox.brokers.remoting.connections import Away, Connections
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.route import Queue, parse_route
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.clock import monotonic
from tests.services.ports import free_port
from tests.unit.brokers.remoting_server import FakeServer, answer

#: As a 4.9 name server writes it: ids of brokers are keys without quotes.
ROUTE = b"""{"brokerDatas":[
 {"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"},
 {"brokerAddrs":{1:"10.0.0.4:10911"},"brokerName":"b","cluster":"c"},
 {"brokerAddrs":{0:"10.0.0.5:10911"},"brokerName":"c","cluster":"c"},
 {"brokerAddrs":{0:"10.0.0.6:10911"},"brokerName":"d","cluster":"c"}],
"filterServerTable":{},"queueDatas":[
 {"brokerName":"d","perm":2,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1},
 {"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":2},
 {"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4},
 {"brokerName":"c","perm":4,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"""


def test_a_route_honours_permissions_queue_numbers_and_masters() -> None:
    # Given four brokers: one healthy, one without its master, one read-only, one write-only; When the route is read
    route = parse_route(ROUTE)
    # Then only queues that may be written, of masters that are there, are written
    assert route.writable == (
        Queue("a", "10.0.0.1:10911", 0),
        Queue("a", "10.0.0.1:10911", 1),
        Queue("d", "10.0.0.6:10911", 0),
    )
    assert route.masters == {"a": "10.0.0.1:10911", "c": "10.0.0.5:10911", "d": "10.0.0.6:10911"}
    assert route.readable == {"a": 4, "c": 4}


def test_a_lane_has_the_same_queue_in_every_process() -> None:
    # Given a route; When a lane is placed; Then it is where it always was (CRC-32 of its name)
    route = parse_route(ROUTE)
    assert [route.lane(lane).broker for lane in ("order-1", "order-2", "order-3", "заказ")] == ["a", "a", "d", "d"]


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"brokerDatas":[{}]}', b'{"queueDatas":{"a":1}}', b"\xff"])
def test_a_body_that_is_no_route_is_an_outage(body: bytes) -> None:
    with pytest.raises(Away, match="no route"):
        parse_route(body)


def routes(*addresses: str) -> Routes:
    """Routes from these name servers."""
    return Routes(addresses, Connections())


class NameServer(FakeServer):
    """A name server that answers route questions as it is told."""

    def _answer(self, request: Frame) -> bytes | None:
        return self.behaviour(self, request)


def test_the_next_name_server_is_asked_where_one_is_away() -> None:
    # Given one name server that is away and one that answers
    with NameServer(lambda server, request: answer(request, body=ROUTE)) as alive:
        # When a route is asked for, of several topics; Then the live one answers
        asking = routes(f"127.0.0.1:{free_port()}", alive.address)
        assert asking.route("one").masters["a"] == "10.0.0.1:10911"
        assert asking.route("two").masters["a"] == "10.0.0.1:10911"
        assert [request.ext["topic"] for request in alive.asked(105)] == ["one", "two"]


def test_a_known_route_outlives_the_name_server_and_the_broker() -> None:
    # Given a route that was known, and a name server that then forgets the topic, as when its broker is down
    known = iter([True])

    def behaviour(server: FakeServer, request: Frame) -> bytes:
        return answer(request, body=ROUTE) if next(known, False) else answer(request, 17)

    with NameServer(behaviour) as server:
        asking = routes(server.address)
        first = asking.route("one")
        asking.doubt("10.0.0.1:10911")
        # When it is asked for again; Then the old one is kept: an outage is not a refusal
        assert asking.route("one") is first
        # But a topic that was never known is unknown
        with pytest.raises(NoRoute, match="two"):
            asking.route("two")


TOPICS = [f"topic-{number}" for number in range(300)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many questions have time for their answers, and are not due again at once, however busy the machine."""
    monkeypatch.setattr(tested, "_CALL", 60.0)
    monkeypatch.setattr(tested, "_PAUSE", 60.0)


@pytest.mark.usefixtures("patient")
def test_the_routes_of_many_topics_are_asked_for_at_once() -> None:
    # Given a name server that answers nothing before it has been asked about every topic, and knows all but one
    waiting: list[Frame] = []

    def behaviour(server: FakeServer, request: Frame) -> bytes:
        waiting.append(request)
        if len(waiting) < len(TOPICS):
            return b""
        return b"".join(answer(it, 17 if it.ext["topic"] == TOPICS[0] else 0, body=ROUTE) for it in waiting)

    with NameServer(behaviour) as server:
        asking = routes(server.address)
        # When all are asked for
        asking.freshen(TOPICS, monotonic() + 60)
        # Then each is known, or known to be missing, and nobody asks again
        with pytest.raises(NoRoute, match=TOPICS[0]):
            asking.route(TOPICS[0])
        assert {asking.route(topic).masters["a"] for topic in TOPICS[1:]} == {"10.0.0.1:10911"}
        assert len(server.asked(105)) == len(TOPICS)


@pytest.mark.usefixtures("patient")
def test_a_name_server_that_hangs_is_asked_once_about_many_topics() -> None:
    # Given old routes, one name server that hangs, and another one that is away
    answers = iter(range(len(TOPICS)))

    def behaviour(server: FakeServer, request: Frame) -> bytes | None:
        return answer(request, body=ROUTE) if next(answers, None) is not None else None

    with NameServer(behaviour) as server:
        asking = Routes([server.address, f"127.0.0.1:{free_port()}"], Connections(), fresh=0.0)
        asking.freshen(TOPICS, monotonic() + 60)
        # When they are asked for again
        asking.freshen(TOPICS, monotonic() + 60)
        # Then the old ones serve, and none of them is waited for once more
        assert {asking.route(topic).masters["a"] for topic in TOPICS} == {"10.0.0.1:10911"}
        assert len(server.asked(105)) == 2 * len(TOPICS)


def test_a_broker_is_found_by_the_topic_of_its_own_name() -> None:
    # Given a topic that has left its broker
    def behaviour(server: FakeServer, request: Frame) -> bytes:
        return answer(request, body=ROUTE) if request.ext["topic"] == "c" else answer(request, 17)

    with NameServer(behaviour) as server:
        # When the broker's master is asked for; Then the broker's own topic names it
        assert routes(server.address).master("gone", "c") == "10.0.0.5:10911"
        with pytest.raises(Away, match="broker z"):
            routes(server.address).master("gone", "z")
