"""Where messages go while brokers fail and topics are missing."""

import json

import pytest

from outbox.brokers.base import Outage, Stored, Unknown
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.frames import Frame
from tests.services.ports import free_port
from tests.unit.brokers.remoting_opened import DEADLINE, TOPIC, Open, message, on_send
from tests.unit.brokers.remoting_server import FakeServer, answer, healthy
from tests.waiting import expect_soon


def meets_silence(broker: RemotingBroker) -> bool:
    """Whether of messages to two brokers half are stored, and the other half is not answered."""
    outcomes = broker.prepare([message() for _ in range(8)], timeout=0.3)
    return [type(outcome) for outcome in outcomes] == [Stored] * 4 + [Unknown] * 4


class Knowing(FakeServer):
    """A name server that knows no topic, and these brokers."""

    def _answer(self, request: Frame) -> bytes | None:
        if request.code == Request.TOPIC_ROUTE:
            return answer(request, Code.TOPIC_NOT_EXIST)
        table = {name: {"brokerAddrs": {"0": address}} for name, address in self.leads_to.items()}
        return answer(request, body=json.dumps({"brokerAddrTable": table}).encode())


@pytest.mark.parametrize(("brokers", "partial"), [({}, False), ({"b": "127.0.0.1:1"}, True)])
def test_a_topic_without_a_route_is_an_outage_of_that_topic(
    opened: Open, brokers: dict[str, str], partial: bool
) -> None:
    # Given a name server that does not know the topic: it is missing, or its only broker is down
    with Knowing(healthy, leads_to=brokers) as name_server:
        client = opened.client(name_server.address)
        # When a message is sent to it; Then it is not refused; other topics may work, if there is any broker
        (outcome,) = client.prepare([message()], timeout=DEADLINE)
    assert isinstance(outcome, Outage)
    assert TOPIC in outcome.reason
    assert outcome.partial is partial


def test_a_broker_that_says_nothing_is_left_out(opened: Open) -> None:
    # Given a topic at two brokers, one of which says nothing
    server, _ = opened(healthy)
    with FakeServer(lambda server, request: None) as silent:
        server.leads_to = {"a": server.address, "b": silent.address}
        broker = opened.first_to_see(server.address, meets_silence)
        asked = len(silent.asked(Request.SEND_MESSAGE_V2))
        # When more is sent; Then all of it goes to the other one
        second = broker.prepare([message() for _ in range(8)], timeout=DEADLINE)
    assert {type(outcome) for outcome in second} == {Stored}
    assert len(silent.asked(Request.SEND_MESSAGE_V2)) == asked >= 4


def test_a_broker_whose_disk_is_full_is_left_out_and_used_again(opened: Open) -> None:
    # Given a topic at two brokers, the disk of one of which is full
    full = [True]
    server, broker = opened(healthy)

    def behaviour(server: FakeServer, request: Frame) -> bytes | None:
        return answer(request, Code.SERVICE_NOT_AVAILABLE) if full else healthy(server, request)

    with FakeServer(behaviour) as other:
        server.leads_to = {"a": server.address, "b": other.address}
        first = broker.prepare([message() for _ in range(8)], timeout=DEADLINE)
        # When more is sent; Then that is the trouble of one broker, and the next messages go to the other one
        assert [(type(it), getattr(it, "partial", None)) for it in first[4:]] == [(Outage, True)] * 4
        assert {type(it) for it in broker.prepare([message() for _ in range(8)], timeout=DEADLINE)} == {Stored}
        # When there is room again; Then both are used
        full.clear()
        before = len(other.asked(Request.SEND_MESSAGE_V2))
        expect_soon(
            lambda: (
                {type(it) for it in broker.prepare([message() for _ in range(8)], timeout=DEADLINE)} == {Stored}
                and len(other.asked(Request.SEND_MESSAGE_V2)) > before
            ),
            "the other one is used again",
        )


def test_where_every_broker_has_failed_all_are_tried(opened: Open) -> None:
    # Given a topic at two brokers that are away; When messages are sent; Then nothing is a matter of one broker
    server, broker = opened(healthy)
    server.leads_to = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b")}
    broker.prepare([message() for _ in range(4)], timeout=DEADLINE)
    outcomes = broker.prepare([message() for _ in range(4)], timeout=DEADLINE)
    assert [(type(it), getattr(it, "partial", None)) for it in outcomes] == [(Outage, False)] * 4


def test_a_lane_waits_for_its_broker(opened: Open) -> None:
    # Given a topic at two brokers, one of which is away, and lanes at both; When messages are sent again and again
    server, broker = opened(on_send(lambda request: healthy(server, request)))
    server.leads_to = {"a": server.address, "b": f"127.0.0.1:{free_port()}"}
    lanes = [f"order-{number}" for number in range(8)]
    turns = [
        [type(it) for it in broker.prepare([message(lane=lane) for lane in lanes], timeout=DEADLINE)] for _ in range(3)
    ]
    # Then no lane leaves its queue
    assert turns[0] == turns[1] == turns[2]
    assert set(turns[0]) == {Stored, Outage}
