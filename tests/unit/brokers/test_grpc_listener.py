"""The gRPC transport's registration for checks: told, kept, and mended when it breaks."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rocketmq.grpc_protocol import Code, TransactionResolution, TransactionSource, service_pb2

from outbox.brokers.base import Answer, Check, Ended
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.broker import GrpcBroker
from outbox.brokers.grpc.workers import THREADS
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.contracts.rig import Asked, soon
from tests.unit.brokers.grpc_proxy import ScriptedProxy, status
from tests.waiting import expect_soon

HALF = "A" * 32
DEADLINE = 60.0


@pytest.fixture
def proxy() -> Iterator[ScriptedProxy]:
    """A proxy that agrees to everything."""
    scripted = ScriptedProxy()
    yield scripted
    scripted.stop()


@pytest.fixture
def broker(proxy: ScriptedProxy) -> Iterator[GrpcBroker]:
    """A connection to it."""
    opened = GrpcBroker(Access(proxy.address), "group")
    yield opened
    opened.close()


def ready(broker: GrpcBroker) -> None:
    expect_soon(broker.checks_ready, "the proxy has acknowledged the topics", within=DEADLINE)


def test_topics_are_told_and_told_again_when_they_change(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a listener; When it gets one more topic; Then the proxy is told, on the stream that is open
    broker.listen(["payments"], Asked())
    ready(broker)
    broker.listen(["payments", "refunds"], Asked())
    ready(broker)
    assert proxy.told[-1] == ("payments", "refunds")


def test_a_check_in_a_namespace_names_the_topic_as_it_was_sent(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    asked = Asked(lambda check, answer: answer(Verdict.COMMIT, soon()))
    broker.listen(["tenant%payments"], asked)
    ready(broker)
    proxy.ask("tenant%payments", HALF)
    expect_soon(lambda: len(asked.answers) == 1, "the check is answered", within=DEADLINE)
    assert asked.checks[0].half.topic == "tenant%payments"
    assert proxy.ended[0].topic.name == "tenant%payments"


def test_a_check_tells_what_the_proxy_tells(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a listener
    asked = Asked(lambda check, answer: answer(Verdict.COMMIT, soon()))
    broker.listen(["payments"], asked)
    ready(broker)
    # When the proxy asks
    proxy.ask("payments", HALF, TRANSACTION_CHECK_TIMES="3", note="é")
    expect_soon(lambda: len(asked.answers) == 1, "the check is answered", within=DEADLINE)
    # Then the check is whole, and its answer names what it answers; the proxy's OK confirms nothing
    (check,) = asked.checks
    assert (check.half.topic, check.half.half_id, check.times) == ("payments", HALF, 3)
    assert check.properties["note"] == "é"
    (ended,) = proxy.ended
    assert (ended.message_id, ended.resolution) == (HALF, TransactionResolution.COMMIT)
    assert ended.source == TransactionSource.SOURCE_SERVER_CHECK
    assert asked.answers[0][1].confirmation is Confirmation.UNANSWERED


def test_a_handler_that_hangs_holds_up_no_other(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a handler that hangs over all halves but one
    hanging, answered = threading.Event(), threading.Event()

    def on_check(check: Check, answer: Answer) -> None:
        if check.half.half_id == HALF:
            answered.set()
        else:
            hanging.wait(DEADLINE)

    broker.listen(["payments"], on_check)
    ready(broker)
    # When all threads but one are taken
    for number in range(THREADS - 1):
        proxy.ask("payments", f"{number:032}")
    proxy.ask("payments", HALF)
    # Then the last check is answered all the same
    assert answered.wait(DEADLINE)
    hanging.set()


@pytest.mark.parametrize("how", ["break_streams", "restart"])
def test_a_broken_stream_is_opened_again(proxy: ScriptedProxy, broker: GrpcBroker, how: str) -> None:
    # Given a listener whose stream, or whole proxy, breaks
    asked = Asked()
    broker.listen(["payments"], asked)
    ready(broker)
    told = len(proxy.told)
    getattr(proxy, how)()
    # When it has been told again
    expect_soon(lambda: len(proxy.told) > told, "the topics are told again", within=DEADLINE)
    ready(broker)
    # Then it is asked again
    proxy.ask("payments", HALF)
    expect_soon(lambda: len(asked.checks) == 1, "the check is heard", within=DEADLINE)
    assert asked.checks[0].half.half_id == HALF


def test_a_proxy_that_does_not_know_us_is_told_again(
    proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a proxy that forgot us, and heartbeats in quick succession
    monkeypatch.setattr("outbox.brokers.grpc.streams.HEARTBEAT", 0.0)
    answers = iter([Code.UNRECOGNIZED_CLIENT_TYPE])

    def heartbeat(*_: Any) -> Any:
        return service_pb2.HeartbeatResponse(status=status(next(answers, Code.OK)))

    proxy.on_heartbeat = heartbeat
    # When it listens; Then the topics are told a second time
    broker.listen(["payments"], Asked())
    expect_soon(lambda: len(proxy.told) > 1, "the topics are told again", within=DEADLINE)
    ready(broker)
    assert set(proxy.told) == {("payments",)}


def test_a_heartbeat_without_an_answer_makes_a_new_connection(
    proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a connection that is open and dead
    monkeypatch.setattr("outbox.brokers.grpc.streams.WITHIN", 0.5)
    dead = threading.Event()
    peers: list[str] = []

    def heartbeat(_: Any, context: Any) -> Any:
        peers.append(context.peer())
        if len(peers) == 1:
            dead.wait(DEADLINE)
        return service_pb2.HeartbeatResponse(status=status(Code.OK))

    proxy.on_heartbeat = heartbeat
    # When it listens; Then another connection is made, and does
    broker.listen(["payments"], Asked())
    ready(broker)
    dead.set()
    assert len(set(peers)) > 1


def test_settings_without_an_answer_make_a_new_stream(
    proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a proxy that lost our end of the stream: it answers nothing on it, and the stream stays open
    monkeypatch.setattr("outbox.brokers.grpc.streams.WITHIN", 0.5)
    answers = iter([False])
    proxy.on_settings = lambda: next(answers, True)
    # When it listens; Then the topics are told on another stream, and checks are heard
    asked = Asked()
    broker.listen(["payments"], asked)
    ready(broker)
    proxy.ask("payments", HALF)
    expect_soon(lambda: len(asked.checks) == 1, "the check is heard", within=DEADLINE)
    assert set(proxy.told) == {("payments",)}
    assert proxy.streams_opened > 1


def test_one_thing_is_told_at_a_time(proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a proxy that has not answered the first settings: two first answers at once would break the stream there
    monkeypatch.setattr("outbox.brokers.grpc.streams.WITHIN", 0.5)
    proxy.on_settings = lambda: proxy.streams_opened > 1
    broker.listen(["payments"], Asked())
    expect_soon(lambda: proxy.told, "the first settings have come", within=DEADLINE)
    # When there is something new to tell; Then it is not told on that stream any more
    broker.listen(["payments", "refunds"], Asked())
    ready(broker)
    assert proxy.told[0] == ("payments",)
    assert proxy.told[-1] == ("payments", "refunds")
    assert proxy.told_by_stream[0] == [("payments",)]


def test_topics_that_do_not_exist_yet_are_left_out_until_they_do(
    proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a topic that the proxy does not know yet
    monkeypatch.setattr("outbox.brokers.grpc.registration._ROUTES_EVERY", 0.1)
    known = {"payments"}

    def route(request: Any, _: Any) -> Any:
        if request.topic.name not in known:
            return service_pb2.QueryRouteResponse(status=status(Code.TOPIC_NOT_FOUND, "no route"))
        return proxy.route(request)

    proxy.on_route = route
    broker.listen(["payments", "refunds"], Asked())
    ready(broker)
    assert proxy.told[-1] == ("payments",)
    # When it is created; Then the proxy is told
    known.add("refunds")
    expect_soon(lambda: proxy.told[-1] == ("payments", "refunds"), "the new topic is told", within=DEADLINE)


def test_who_leaves_says_so(proxy: ScriptedProxy, broker: GrpcBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a client that has time to say it, however busy the machine
    monkeypatch.setattr("outbox.brokers.grpc.streams.WITHIN", 3 * DEADLINE)
    monkeypatch.setattr("outbox.brokers.grpc.registration._CLOSING", DEADLINE)
    broker.listen(["payments"], Asked())
    ready(broker)
    broker.close()
    assert proxy.left == 1
    assert not broker.checks_ready()


def test_an_answer_after_the_window_is_not_sent(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    asked = Asked(lambda check, answer: answer(Verdict.COMMIT, monotonic() - 1))
    broker.listen(["payments"], asked)
    ready(broker)
    proxy.ask("payments", HALF)
    expect_soon(lambda: len(asked.answers) == 1, "the handler has returned", within=DEADLINE)
    assert proxy.ended == []
    assert asked.answers[0][1].confirmation is Confirmation.UNANSWERED


def test_a_check_is_answered_once(proxy: ScriptedProxy, broker: GrpcBroker) -> None:
    # Given a handler that commits twice; When it is asked; Then the second time says that nothing was sent
    seconds: list[Ended] = []

    def twice(check: Check, answer: Answer) -> Ended:
        first = answer(Verdict.COMMIT, soon())
        seconds.append(answer(Verdict.COMMIT, soon()))
        return first

    asked = Asked(twice)
    broker.listen(["payments"], asked)
    ready(broker)
    proxy.ask("payments", HALF)
    expect_soon(lambda: len(asked.answers) == 1, "the handler has returned", within=DEADLINE)
    assert len(proxy.ended) == 1
    assert "answered before" in seconds[0].reason
