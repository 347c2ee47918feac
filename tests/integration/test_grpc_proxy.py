"""The gRPC transport on a real proxy: what the proxy lets in, and what it leaves when it restarts."""

import threading
from collections.abc import Iterator

import pytest

from outbox.brokers.base import Answer, Check, Ended, Outage, Refused, Sent, Stored
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.broker import GrpcBroker
from outbox.identity import fresh_token
from outbox.lifecycle import Verdict
from tests.contracts.rig import PATIENCE, Asked, message, prepare_one, soon
from tests.services.rocketmq import create_topics
from tests.services.rocketmq.admin import Admin
from tests.services.rocketmq.proxy import Proxy
from tests.waiting import expect_soon

#: Seconds; a proxy tells the brokers once a second for which topics it passes checks on.
DEADLINE = 120.0


@pytest.fixture
def broker(rocketmq_proxy: str) -> Iterator[GrpcBroker]:
    """A connection to the shared proxy."""
    opened = GrpcBroker(Access(rocketmq_proxy), f"group-{fresh_token()}")
    yield opened
    opened.close()


def topic_of(namesrv: str, message_type: str) -> str:
    """A new topic of this type."""
    names = [f"{message_type.lower()}-{fresh_token()}", f"other-{fresh_token()}"]
    create_topics(namesrv, names, queues=4, message_type=message_type)
    return names[0]


def test_a_topic_takes_messages_of_its_type_only(rocketmq: str, broker: GrpcBroker) -> None:
    # Given topics of three types
    transactional, normal, fifo = (topic_of(rocketmq, name) for name in ("TRANSACTION", "NORMAL", "FIFO"))
    # When halves are sent; Then one topic takes them, and the others say how they would have to be created
    halves = broker.prepare([message(it) for it in (transactional, normal, fifo)], PATIENCE)
    assert [type(it) for it in halves] == [Stored, Refused, Refused]
    assert all("message.type=TRANSACTION" in it.reason for it in halves if isinstance(it, Refused))
    # When plain messages are sent, with a lane and without; Then a lane needs a FIFO topic
    plain = [message(it, lane=lane) for it in (transactional, normal, fifo) for lane in ("lane", None)]
    outcomes = [type(it) for it in broker.send(plain, PATIENCE)]
    assert outcomes == [Refused, Refused, Refused, Sent, Sent, Sent]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"properties": {"note": "a\x01b"}}, id="control character"),
        pytest.param({"properties": {"KEYS": "mine"}}, id="reserved name"),
        pytest.param({"properties": {"note": "x" * 17_000}}, id="over 16 KiB of properties"),
        pytest.param({"tag": "a|b"}, id="tag"),
        pytest.param({"key": " "}, id="blank key"),
    ],
)
def test_what_the_proxy_refuses_is_refused_for_good(
    rocketmq: str, broker: GrpcBroker, fields: dict[str, object]
) -> None:
    (outcome,) = broker.prepare([message(**{"topic": topic_of(rocketmq, "TRANSACTION"), **fields})], PATIENCE)  # type: ignore[arg-type]
    assert isinstance(outcome, Refused), outcome
    assert outcome.reason


def test_a_missing_topic_is_an_outage_of_that_topic_alone(broker: GrpcBroker) -> None:
    (outcome,) = broker.prepare([message("missing")], PATIENCE)
    assert isinstance(outcome, Outage)
    assert outcome.partial


def test_checks_go_on_after_the_proxy_has_restarted(rocketmq: str, proxy_server: Proxy) -> None:
    # Given a listener, a half whose sender is gone, and one of its own
    topic = topic_of(rocketmq, "TRANSACTION")
    with Admin(rocketmq) as admin:
        group = f"group-{fresh_token()}"
        sender, broker = (GrpcBroker(Access(proxy_server.url), group) for _ in range(2))
        orphan, own = (prepare_one(each, message(topic)) for each in (sender, broker))
        sender.close()
        decided = threading.Event()

        def once_decided(check: Check, answer: Answer) -> Ended:
            ours = decided.is_set() and check.half.half_id == own.half_id
            return answer(Verdict.COMMIT if ours else Verdict.UNKNOWN, soon())

        asked = Asked(once_decided)
        broker.listen([topic], asked)
        expect_soon(lambda: asked.times(orphan) > 0, "it is asked", within=DEADLINE)
        # When the proxy dies and comes back, and knows nobody and nothing
        proxy_server.kill()
        expect_soon(lambda: not broker.checks_ready(), "the listener has noticed", within=DEADLINE)
        proxy_server.restart()
        before = asked.times(orphan)
        # Then the listener is registered and asked again
        expect_soon(broker.checks_ready, "the listener is registered again", within=DEADLINE)
        expect_soon(lambda: asked.times(orphan) > before, "it is asked again", within=DEADLINE)
        # And the proxy's memory of the halves is not needed: the answer to a check makes the message visible (and the
        # answer to one more check, of a broker that had not written down yet that the half has ended, makes a copy)
        decided.set()
        assert {it.properties["UNIQ_KEY"] for it in admin.read_soon(topic, within=DEADLINE)} == {own.half_id}
        broker.close()
