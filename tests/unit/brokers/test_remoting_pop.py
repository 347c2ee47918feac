"""POP consumption: receipts, expiry, tags, and brokers that answer badly."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from outbox.brokers.remoting import polls
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.pop import PopSource
from outbox.brokers.remoting.receipts import Receipt, receipts
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage, decode_messages
from outbox.brokers.source import Delivery
from outbox.clock import monotonic
from tests.unit.brokers.remoting_opened import DEADLINE, TOPIC
from tests.unit.brokers.remoting_server import FakeServer, answer, healthy, stored_message
from tests.waiting import expect_soon

pytestmark = pytest.mark.usefixtures("unhurried")
TIMES = {"popTime": "1700000000000", "invisibleTime": "30000", "reviveQid": "4"}
RENEWED = {"popTime": "1700000000999", "invisibleTime": "60000", "reviveQid": "5"}


def lying(queue: int, offset: int, properties: Mapping[str, str] | None = None) -> StoredMessage:
    """A message at a place of a queue."""
    return StoredMessage(TOPIC, b"", properties or {}, queue, offset, offset * 100, 0, 0, 0)


def test_offsets_belong_to_messages_by_rank() -> None:
    # Given two queues whose checkpoints start at 5 and 8, with a gap, and messages in any order
    messages = [lying(0, 7), lying(1, 8), lying(0, 5), lying(0, 9)]
    told = {**TIMES, "startOffsetInfo": "0 0 5;0 1 8", "msgOffsetInfo": "0 0 5,7,9;0 1 8;1 0 77"}
    # When the answer is read; Then each message has the offset of its rank in its queue
    found = [str(receipt) for _, receipt in receipts(messages, told, "broker-a")]
    assert found == [
        "700 5 1700000000000 30000 4 0 broker-a 0 7",
        "800 8 1700000000000 30000 4 0 broker-a 1 8",
        "500 5 1700000000000 30000 4 0 broker-a 0 5",
        "900 5 1700000000000 30000 4 0 broker-a 0 9",
    ]


@pytest.mark.parametrize(("kind", "topic"), [("0", "topic"), ("1", "%RETRY%group_topic"), ("2", "%RETRY%group+topic")])
def test_a_retried_message_brings_its_handle(kind: str, topic: str) -> None:
    # Given a retried message; When the answer is read; Then its own handle counts, and names the retry topic
    own = f"3 1700000000000 30000 2 {kind} broker-b 0 3"
    ((_, receipt),) = receipts([lying(5, 9, {"POP_CK": own})], TIMES, "broker-a")
    assert receipt.handle == own
    assert (receipt.commit_log_offset, receipt.broker) == ("900", "broker-b")
    assert receipt.real_topic("topic", "group") == topic


@pytest.mark.parametrize(
    "told",
    [
        {},
        TIMES,
        {**TIMES, "startOffsetInfo": "0 0 5", "msgOffsetInfo": "0 1 5"},
        {**TIMES, "startOffsetInfo": "0 0 5", "msgOffsetInfo": "0 0"},
        {"startOffsetInfo": "0 0 5", "msgOffsetInfo": "0 0 5"},
    ],
)
def test_an_answer_that_does_not_fit_together_is_refused(told: dict[str, str]) -> None:
    with pytest.raises(MalformedMessage, match="queue 0"):
        list(receipts([lying(0, 5)], told, "broker-a"))


def test_a_receipt_of_another_transport_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="receipt"):
        Receipt.parse("file:7")


def test_a_renewal_is_a_checkpoint_of_its_own() -> None:
    # Given a receipt; When its invisible time is changed; Then the new one starts at the message itself
    old = Receipt.parse("700 5 1 30000 4 0 broker-a 0 7")
    new = old.renewed({"popTime": "2", "invisibleTime": "1000", "reviveQid": "6"})
    assert str(new) == "700 7 2 1000 6 0 broker-a 0 7"


@pytest.mark.parametrize("name", sorted(RENEWED))
def test_a_renewal_without_its_checkpoint_is_refused(name: str) -> None:
    told = {field: value for field, value in RENEWED.items() if field != name}
    with pytest.raises(MalformedMessage, match=name):
        Receipt.parse("700 5 1 30000 4 0 broker-a 0 7").renewed(told)


class Popping:
    """A broker that gives out prepared answers to polls and says yes to everything else."""

    def __init__(self) -> None:
        self.answers: list[Callable[[Frame], bytes | None]] = []
        self.renewed: Mapping[str, str] = RENEWED

    def __call__(self, server: FakeServer, request: Frame) -> bytes | None:
        """Answers one request."""
        if request.code != Request.POP_MESSAGE:
            return (
                healthy(server, request)
                if request.code != Request.CHANGE_INVISIBLE
                else answer(request, ext=self.renewed)
            )
        return self.answers.pop(0)(request) if self.answers else answer(request, 210)

    def give(self, *tags: str, **told: str) -> None:
        """Has the next poll find one message for each tag; ``told``: further fields of the answer."""
        body = b"".join(
            stored_message(TOPIC, b"body", {"UNIQ_KEY": f"ID{n}", "KEYS": "a b", "TAGS": tag}, offset=n)
            for n, tag in enumerate(tags)
        )
        offsets = ",".join(str(n) for n in range(len(tags)))
        ext = {**TIMES, "startOffsetInfo": "0 0 0", "msgOffsetInfo": f"0 0 {offsets}", **told}
        self.answers.append(lambda request: answer(request, ext=ext, body=body))


@pytest.fixture
def popping() -> Popping:
    return Popping()


@pytest.fixture
def server(popping: Popping) -> Iterator[FakeServer]:
    with FakeServer(popping) as started:
        yield started


@pytest.fixture
def source(server: FakeServer) -> Iterator[PopSource]:
    opened = PopSource(server.address, "group", {TOPIC: "paid || sent"}, invisible=30)
    yield opened
    opened.close()


def test_a_poll_asks_with_these_fields(server: FakeServer, source: PopSource) -> None:
    # Given a source; When it receives; Then it polls all queues, with no born time of ours
    assert source.receive(limit=100, wait=0) == []
    (request,) = server.asked(200050)
    assert request.ext == {
        "consumerGroup": "group",
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "30000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "paid || sent",
        "order": "false",
    }


@pytest.fixture
def orderly(server: FakeServer) -> Iterator[PopSource]:
    opened = PopSource(server.address, "group", [TOPIC], invisible=30, orderly=True)
    yield opened
    opened.close()


def test_an_orderly_group_asks_for_one_message_several_times(server: FakeServer, orderly: PopSource) -> None:
    # Given an orderly source; When it receives; Then each poll wants one message, in order
    assert orderly.receive(limit=100, wait=0) == []
    expect_soon(lambda: len(server.asked(200050)) > 1, "several polls are under way")
    asked = server.asked(200050)
    assert {(each.ext["order"], each.ext["maxMsgNums"], each.ext["queueId"]) for each in asked} == {("true", "1", "-1")}


@pytest.mark.parametrize(
    ("told", "attempt"),
    [("", 1), ("0 qo0%0 2;0 0 2", 3), ("0 qo0%00 7;0 qo10%0 7;0 qo0%0 1", 2), ("0 qo1%0 7;1 qo0%0 7", 1)],
)
def test_deliveries_of_an_orderly_group_are_counted_by_the_answer(
    orderly: PopSource, popping: Popping, told: str, attempt: int
) -> None:
    # Given an answer that counts deliveries of this message, or of others; When it is received; Then its own count
    popping.give("paid", orderCountInfo=told)
    (delivery,) = orderly.receive(limit=1, wait=DEADLINE)
    assert (delivery.attempt, delivery.lane) == (attempt, f"{TOPIC}@{delivery.receipt.split()[6]}/0")


def test_what_an_orderly_source_never_gave_out_goes_back_when_it_closes(
    server: FakeServer, orderly: PopSource, popping: Popping
) -> None:
    # Given an answer of two where one was asked for
    popping.give("paid", "paid")
    orderly.receive(limit=1, wait=DEADLINE)
    # When the source closes; Then the other one need not wait for its time
    orderly.close()
    (request,) = server.asked(Request.CHANGE_INVISIBLE)
    assert (request.ext["offset"], request.ext["invisibleTime"]) == ("1", "1")
    # And nothing is received any more
    assert orderly.receive(limit=1, wait=DEADLINE) == []


def test_tags_are_compared_again(server: FakeServer, source: PopSource, popping: Popping) -> None:
    # Given a broker that takes "unpaid" for "paid", since their hashes are equal
    popping.give("paid", "unpaid", "sent")
    # When the source receives; Then the foreign one is acknowledged and not shown
    got = source.receive(limit=10, wait=DEADLINE)
    assert [(delivery.unique_id, delivery.tag) for delivery in got] == [("ID0", "paid"), ("ID2", "sent")]
    assert got[0].keys == ("a", "b")
    assert [request.ext["offset"] for request in server.asked(200051)] == ["1"]


def test_more_than_the_limit_is_kept_for_the_next_call(source: PopSource, popping: Popping) -> None:
    # Given an answer of three; When two are asked for; Then the third comes next
    popping.give("paid", "paid", "paid")
    assert [delivery.unique_id for delivery in source.receive(limit=2, wait=DEADLINE)] == ["ID0", "ID1"]
    assert [delivery.unique_id for delivery in source.receive(limit=2, wait=0)] == ["ID2"]


def test_nothing_is_asked_with_an_expired_receipt(server: FakeServer, source: PopSource, popping: Popping) -> None:
    # Given a delivery that has expired by our clock
    popping.give("paid")
    (live,) = source.receive(limit=1, wait=DEADLINE)
    expired = replace(live, invisible_until=monotonic())
    # When anything is asked about it; Then the broker, which would say yes, does not hear of it
    assert source.acknowledge(expired) is False
    assert source.acknowledge_all([expired, live]) == [False, True]
    assert source.renew(expired, 30) is None
    assert source.later(expired, 1) is False
    assert source.bury(expired, "bad") is False
    assert [request.code for request in server.requests if request.code not in {105, 200050}] == [200051]


def test_the_invisible_time_counts_from_before_the_request(source: PopSource, popping: Popping) -> None:
    # Given a broker; When a delivery is received and renewed; Then both times count from before we asked
    popping.give("paid")
    before = monotonic()
    (delivery,) = source.receive(limit=1, wait=DEADLINE)
    after = monotonic()
    assert before + 30 <= delivery.invisible_until <= after + 30
    renewed = source.renew(delivery, 60)
    assert renewed is not None
    assert after + 60 <= renewed.invisible_until <= monotonic() + 60
    assert renewed.receipt != delivery.receipt


def test_a_renewal_that_names_no_receipt_is_none(
    server: FakeServer, source: PopSource, popping: Popping, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker that says yes to a renewal and nothing else
    popping.give("paid")
    (delivery,) = source.receive(limit=1, wait=DEADLINE)
    popping.renewed = {}
    # When the invisible time is changed; Then the delivery is not ours any more, and the log says why
    assert source.renew(delivery, 60) is None
    assert source.later(delivery, 1) is False
    assert "popTime" in caplog.text


def test_a_dead_letter_is_copied_before_it_is_acknowledged(
    server: FakeServer, source: PopSource, popping: Popping
) -> None:
    # Given a delivery; When it is buried
    popping.give("paid")
    (delivery,) = source.receive(limit=1, wait=DEADLINE)
    assert source.bury(delivery, "cannot be read") is True
    # Then the broker copies it, and only then forgets it
    copied, acknowledged = server.requests[-2:]
    assert (copied.code, acknowledged.code) == (36, 200051)
    assert (copied.ext["delayLevel"], copied.ext["originTopic"], copied.ext["group"]) == ("-1", TOPIC, "group")


def test_a_message_that_cannot_be_read_is_buried_and_holds_up_no_other(
    server: FakeServer, source: PopSource, popping: Popping
) -> None:
    # Given a message whose body is compressed in a way of others, and a good one behind it, in one answer
    odd = stored_message(TOPIC, b"not zlib", {"UNIQ_KEY": "ODD"}, flag=1)
    good = stored_message(TOPIC, b"body", {"UNIQ_KEY": "GOOD", "TAGS": "paid"}, offset=1)
    ext = {**TIMES, "startOffsetInfo": "0 0 0", "msgOffsetInfo": "0 0 0,1"}
    popping.answers.append(lambda request: answer(request, ext=ext, body=odd + good))
    # When they are received / Then the good one comes, and the broker copies the other as it was stored
    assert [it.unique_id for it in source.receive(limit=2, wait=DEADLINE)] == ["GOOD"]
    assert [request.ext["originMsgId"] for request in server.requests if request.code == 36] == ["ODD"]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(lambda request: answer(request, body=b"noise", ext=TIMES), id="noise"),
        pytest.param(lambda request: answer(request, body=stored_message(TOPIC, b"", {})), id="no positions"),
        pytest.param(lambda request: answer(request, 16, remark="no permission"), id="permission"),
        pytest.param(lambda request: b"\xff" * 64, id="garbage"),
    ],
)
def test_a_bad_answer_is_nothing_received(
    source: PopSource, popping: Popping, bad: Callable[[Frame], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a bad answer, and a good one after it; When the source receives; Then the bad one is logged and left
    popping.answers.append(bad)
    popping.give("paid")
    got: list[Delivery] = []

    def receive() -> bool:
        got.extend(source.receive(limit=1, wait=0.2))
        return bool(got)

    expect_soon(receive, "the good one is received")
    assert [delivery.unique_id for delivery in got] == ["ID0"]
    assert TOPIC in caplog.text


def test_an_outage_is_nothing_received(source: PopSource, server: FakeServer) -> None:
    # Given a broker that goes away; When the source receives; Then there is nothing, and nothing raises
    source.receive(limit=1, wait=0)
    server.stop()
    assert source.receive(limit=1, wait=0.3) == []
    source.close()
    assert source.receive(limit=1, wait=0.3) == []


def test_a_topic_without_a_route_is_asked_for_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given no name server, and a clock that stands still
    now = monotonic()
    monkeypatch.setattr(polls, "monotonic", lambda: now)
    source = PopSource("127.0.0.1:1", "group", [TOPIC], invisible=30)
    # When a consumer receives again and again; Then it asks, and says so, once
    for _ in range(3):
        assert source.receive(limit=1, wait=0.01) == []
    assert caplog.text.count(f"nothing is received from topic {TOPIC}") == 1
    # And once more as soon as the second is over
    now += 1.5
    assert source.receive(limit=1, wait=0.01) == []
    assert caplog.text.count(f"nothing is received from topic {TOPIC}") == 2
    source.close()


def test_an_unknown_wait_or_topic_is_wrong_use() -> None:
    with pytest.raises(ValueError, match="topics, invisible"):
        PopSource("127.0.0.1:1", "group", [], invisible=30)
    with pytest.raises(ValueError, match="topics, invisible"):
        PopSource("127.0.0.1:1", "group", [TOPIC], invisible=0)


def test_compressed_bodies_are_inflated() -> None:
    (message,) = decode_messages(stored_message(TOPIC, b"long " * 1000, {}, compressed=True))
    assert message.body == b"long " * 1000
