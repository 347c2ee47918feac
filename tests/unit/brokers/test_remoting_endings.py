"""Commits and rollbacks against brokers that answer badly, late, or not at all."""

import pytest

from outbox.brokers.base import (
    Ending,
    Half,
)
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.frames import Frame
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation
from tests.unit.brokers.remoting_opened import DEADLINE, GROUP, TOPIC, Open, half
from tests.unit.brokers.remoting_server import Behaviour, FakeServer, answer, healthy
from tests.waiting import expect_soon


@pytest.mark.parametrize(
    ("code", "remark", "confirmation"),
    [
        (0, "", Confirmation.CONFIRMED),
        (1, "Find prepared transaction message failed", Confirmation.GONE),
        (1, "The producer group wrong", Confirmation.DENIED),
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy", Confirmation.UNANSWERED),
        (14, "disk full", Confirmation.DENIED),
        (16, "no permission", Confirmation.DENIED),
    ],
)
def test_what_the_answer_to_an_ending_means(opened: Open, code: int, remark: str, confirmation: Confirmation) -> None:
    # Given a broker that answers so; When a half is committed; Then this is what is known
    server, broker = opened(lambda server, request: answer(request, code, remark=remark))
    (ended,) = broker.resolve([Ending(half(server), Verdict.COMMIT)], monotonic() + DEADLINE)
    assert ended.confirmation is confirmation
    assert remark in ended.reason


@pytest.mark.parametrize(("verdict", "word"), [(Verdict.COMMIT, "8"), (Verdict.ROLLBACK, "12")])
def test_an_ending_is_sent_with_these_fields(opened: Open, verdict: Verdict, word: str) -> None:
    # Given a half; When it is ended; Then the request names its position, its group and its verdict
    server, broker = opened(healthy)
    ours = half(server)
    broker.resolve([Ending(ours, verdict)], monotonic() + DEADLINE)
    (request,) = server.asked(37)
    assert request.ext == {
        "topic": TOPIC,
        "producerGroup": GROUP,
        "commitOrRollback": word,
        "fromTransactionCheck": "false",
        "tranStateTableOffset": "5",
        "commitLogOffset": "1001",
        "msgId": ours.half_id,
        "transactionId": ours.half_id,
    }
    assert request.flag == 0


def test_a_handle_of_another_transport_harms_no_other(opened: Open) -> None:
    # Given a handle that is no position; When it is ended with others; Then it alone is denied
    server, broker = opened(healthy)
    good = half(server)
    wrong = Half(TOPIC, good.half_id, good.broker, "store:1:2", GROUP)
    endings = [Ending(wrong, Verdict.COMMIT), Ending(good, Verdict.COMMIT)]
    ended = broker.resolve(endings, monotonic() + DEADLINE)
    assert [each.confirmation for each in ended] == [Confirmation.DENIED, Confirmation.CONFIRMED]


def test_unknown_is_no_ending(opened: Open) -> None:
    server, broker = opened(healthy)
    with pytest.raises(ValueError, match="COMMIT or ROLLBACK"):
        broker.resolve([Ending(half(server), Verdict.UNKNOWN)], monotonic() + 1)


def silent_at_first() -> Behaviour:
    """Healthy, but for the first ending."""
    silent = iter([True])

    def behaviour(server: FakeServer, request: Frame) -> bytes | None:
        if request.code == Request.END_TRANSACTION and next(silent, False):
            return None
        return healthy(server, request)

    return behaviour


@pytest.mark.parametrize(("verdict", "connections"), [(Verdict.COMMIT, 2), (Verdict.ROLLBACK, 1)])
def test_an_unanswered_commit_ends_its_connection(opened: Open, verdict: Verdict, connections: int) -> None:
    # Given a broker that does not answer the first ending, which leaves in a short time unless we get no turn
    pairs: list[tuple[FakeServer, RemotingBroker]] = []

    def left() -> bool:
        server, broker = opened(silent_at_first())
        pairs.append((server, broker))
        (ended,) = broker.resolve([Ending(half(server), verdict)], monotonic() + 0.3)
        assert ended.confirmation is Confirmation.UNANSWERED
        return bool(server.asked(Request.END_TRANSACTION))

    expect_soon(left, "an ending leaves")
    server, broker = pairs[-1]
    # When the next one is ended; Then a COMMIT that nobody answered cannot arrive any more
    (again,) = broker.resolve([Ending(half(server), verdict)], monotonic() + DEADLINE)
    assert again.confirmation is Confirmation.CONFIRMED
    assert server.connections == connections
