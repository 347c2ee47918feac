"""Checks as brokers of 4.9 and 5.x ask them, and nonsense."""

import threading

import pytest

from outbox.brokers.base import (
    Answer,
    Check,
    Ended,
    Ending,
    Half,
    Stored,
)
from outbox.brokers.remoting import frames
from outbox.brokers.remoting.checks import WAITING
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.unit.brokers.remoting_opened import GROUP, TOPIC, Open, half, message
from tests.unit.brokers.remoting_server import healthy, stored_message
from tests.waiting import expect_soon


def check_frame(half_id: str, *, ext: dict[str, str] | None = None, body: bytes | None = None) -> bytes:
    """A broker's question as 4.9 asks it: without the broker's name."""
    properties = {"UNIQ_KEY": half_id, "PGROUP": "old group", "TRANSACTION_CHECK_TIMES": "3", "outbox-token": "t"}
    default = {"tranStateTableOffset": "77", "commitLogOffset": "2002", "msgId": half_id, "transactionId": half_id}
    content = stored_message(TOPIC, b"body", properties) if body is None else body
    return frames.encode(39, 1, default if ext is None else ext, content, flag=frames.ONE_WAY)


class Listening:
    """A handler that remembers."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self.verdict = verdict
        self.checks: list[Check] = []
        self.ended: list[Ended] = []

    def __call__(self, check: Check, answer: Answer) -> None:
        self.checks.append(check)
        if self.verdict is None:
            raise RuntimeError("the row cannot be read")
        self.ended.append(answer(self.verdict, monotonic() + 60))


@pytest.mark.parametrize(("verdict", "word"), [(Verdict.COMMIT, "8"), (Verdict.ROLLBACK, "12"), (Verdict.UNKNOWN, "0")])
def test_a_check_is_answered_at_its_own_position(opened: Open, verdict: Verdict, word: str) -> None:
    # Given a listener
    server, broker = opened(healthy)
    handler = Listening(verdict)
    broker.listen([TOPIC], handler, ["old group"])
    expect_soon(broker.checks_ready, "the listener is registered")
    # When the broker asks
    server.push(check_frame("ABC"))
    expect_soon(lambda: bool(handler.ended), "the check is answered")
    # Then the half is the copy that the check names, and the answer goes there
    assert handler.ended == [Ended(Confirmation.CONFIRMED)]
    (check,) = handler.checks
    assert check.half == Half(TOPIC, "ABC", "broker-a", "77 2002", "old group")
    assert (check.times, check.properties["outbox-token"]) == (3, "t")
    expect_soon(lambda: bool(server.asked(37)), "the answer arrives")
    (request,) = server.asked(37)
    assert (request.ext["commitOrRollback"], request.ext["fromTransactionCheck"]) == (word, "true")
    assert (request.ext["tranStateTableOffset"], request.ext["commitLogOffset"]) == ("77", "2002")
    assert (request.ext["producerGroup"], request.flag) == ("old group", 2 if verdict is Verdict.UNKNOWN else 0)


def test_a_check_of_a_broker_without_a_name_is_left_open(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    # Given a listener, and a server that no route names any more
    broker_server, _ = opened(healthy)
    server, broker = opened(healthy)
    server.leads_to = {"broker-a": broker_server.address}
    handler = Listening(Verdict.COMMIT)
    broker.listen([TOPIC], handler, ())
    expect_soon(broker.checks_ready, "the listener is registered")
    # When both ask; Then only the half is ended whose broker can be found again
    server.push(check_frame("ABC"))
    expect_soon(lambda: "does not name its broker" in caplog.text, "the check is refused")
    broker_server.push(check_frame("DEF"))
    expect_soon(lambda: bool(handler.ended), "the other check is answered")
    assert [check.half.half_id for check in handler.checks] == ["DEF"]


def test_a_failing_handler_answers_unknown(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    # Given a handler that fails; When the broker asks; Then the failure is logged and the half stays open
    server, broker = opened(healthy)
    broker.listen([TOPIC], Listening(), ())
    expect_soon(broker.checks_ready, "the listener is registered")
    server.push(check_frame("ABC"))
    expect_soon(lambda: bool(server.asked(37)), "the answer arrives")
    (request,) = server.asked(37)
    assert (request.ext["commitOrRollback"], request.flag) == ("0", 2)
    assert "the row cannot be read" in caplog.text


@pytest.mark.parametrize(
    "bad",
    [
        check_frame("ABC", body=b""),
        check_frame("ABC", body=b"noise that is no message"),
        check_frame("ABC", ext={}),
        check_frame("ABC", ext={"tranStateTableOffset": "x", "commitLogOffset": "1"}),
        check_frame("ABC", body=stored_message(TOPIC, b"", {"PGROUP": GROUP})),
        frames.encode(40, 1, {}, flag=frames.ONE_WAY),
    ],
)
def test_a_question_that_makes_no_sense_is_left_alone(opened: Open, bad: bytes) -> None:
    # Given a listener; When the broker asks nonsense and then something good; Then only that is answered
    server, broker = opened(healthy)
    handler = Listening(Verdict.COMMIT)
    broker.listen([TOPIC], handler, ())
    expect_soon(broker.checks_ready, "the listener is registered")
    server.push(bad + check_frame("GOOD"))
    expect_soon(lambda: bool(handler.ended), "the good check is answered")
    assert [check.half.half_id for check in handler.checks] == ["GOOD"]
    assert server.connections == 1


def test_the_heartbeat_names_every_group_and_is_repeated_on_a_new_connection(opened: Open) -> None:
    # Given a listener
    server, broker = opened(healthy)
    broker.listen([TOPIC], Listening(Verdict.UNKNOWN), ["old group"])
    expect_soon(broker.checks_ready, "the listener is registered")
    beat = server.asked(34)[-1]
    assert b'"groupName": "group"' in beat.body
    assert b'"groupName": "old group"' in beat.body
    # When the connection ends
    before = len(server.asked(34))
    server.hang_up()
    # Then it is not ready until it has registered again, by itself
    expect_soon(lambda: len(server.asked(34)) > before, "one more heartbeat")
    expect_soon(broker.checks_ready, "the listener is registered again")


def test_the_heartbeat_is_repeated_before_the_broker_forgets(opened: Open) -> None:
    # Given a listener on a connection that stays open: a broker forgets a producer that sends no heartbeat for long
    server, _ = opened(healthy)
    broker = opened.client(server.address, heartbeat=0.1)
    broker.listen([TOPIC], Listening(Verdict.UNKNOWN), ())
    # When time passes; Then it is heard of again and again
    expect_soon(lambda: len(server.asked(34)) >= 3, "a third heartbeat")
    assert broker.checks_ready()


def test_more_checks_than_fit_are_dropped_and_hold_up_nothing(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    # Given a handler that hangs, and more checks than threads and places
    server, broker = opened(healthy)
    over = threading.Event()
    checks: list[Check] = []

    def hang(check: Check, answer: Answer) -> None:
        checks.append(check)
        over.wait(60)

    broker.listen([TOPIC], hang, ())
    expect_soon(broker.checks_ready, "the listener is registered")
    for number in range(WAITING + 20):
        server.push(check_frame(f"ID{number}"))
    expect_soon(lambda: "dropped a check" in caplog.text, "what is too much is dropped")
    # When a half is sent and ended over the same connection; Then its answers are read
    assert isinstance(broker.prepare([message()], timeout=60)[0], Stored)
    (ended,) = broker.resolve([Ending(half(server), Verdict.COMMIT)], monotonic() + 60)
    assert ended.confirmation is Confirmation.CONFIRMED
    assert server.connections == 1
    expect_soon(lambda: len(checks) >= 4, "every thread has a check")
    over.set()
