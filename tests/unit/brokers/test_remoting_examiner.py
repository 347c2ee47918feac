"""What the examiner makes of servers that are old, silent, closed, or talk nonsense; and that it only reads."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from outbox.brokers.examiner import DiscardTopic, GroupFacts, OutOfReach, Runtime, TopicFacts
from outbox.brokers.ledger import CannotTell
from outbox.brokers.remoting.commands import Code
from outbox.brokers.remoting.examiner import RemotingExaminer, version_of
from outbox.brokers.remoting.frames import Frame
from tests.services.ports import free_port
from tests.unit.brokers.remoting_server import FakeServer, answer, stored_message

CLUSTER, SETTINGS, RUNTIME, TOPIC, TOPICS, GROUPS, PRODUCERS, PULL = 106, 26, 28, 351, 21, 201, 204, 11
READS = {CLUSTER, SETTINGS, RUNTIME, TOPIC, TOPICS, GROUPS, PRODUCERS, PULL}

Answer = Callable[[Frame], bytes | None]


@dataclass
class Broker:
    """Answers by code; knows itself as the cluster's one master."""

    answers: Mapping[int, Answer] = field(default_factory=dict)

    def __call__(self, server: FakeServer, request: Frame) -> bytes | None:
        if request.code == CLUSTER:
            table = {"broker-a": {"brokerAddrs": {"0": server.address}}, "slave": {"brokerAddrs": {"1": "10.0.0.1:1"}}}
            return answer(request, body=json.dumps({"brokerAddrTable": table}).encode())
        given = self.answers.get(request.code)
        return answer(request, Code.UNSUPPORTED, remark="not supported") if given is None else given(request)


def says(body: object) -> Answer:
    """The body as JSON, or as it is."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: answer(request, body=content)


def refuses(code: int, remark: str) -> Answer:
    return lambda request: answer(request, code, remark=remark)


@pytest.fixture
def examine() -> Iterator[Callable[..., tuple[RemotingExaminer, FakeServer]]]:
    opened: list[RemotingExaminer | FakeServer] = []

    def of(answers: Mapping[int, Answer]) -> tuple[RemotingExaminer, FakeServer]:
        server = FakeServer(Broker(answers)).__enter__()
        examiner = RemotingExaminer(server.address)
        opened.extend((examiner, server))
        assert list(examiner.masters()) == ["broker-a"]
        return examiner, server

    yield of
    for it in opened:
        it.close() if isinstance(it, RemotingExaminer) else it.stop()


Examine = Callable[[Mapping[int, Answer]], tuple[RemotingExaminer, FakeServer]]


def test_only_the_named_settings_are_kept(examine: Examine) -> None:
    # Given settings as a broker writes them, passwords among them
    lines = b'initAuthenticationUser={"username":"root","password":"secret"}\nmessageIndexEnable=true\nbrokerIP1=x\n'
    examiner, _ = examine({SETTINGS: says(lines)})
    assert examiner.settings("broker-a") == {"messageIndexEnable": "true"}


def test_version_and_disk_are_read_from_the_figures(examine: Examine) -> None:
    table = {"brokerVersionDesc": "V5_4_0", "commitLogDiskRatio": "0.18"}
    examiner, _ = examine({RUNTIME: says({"table": table})})
    assert examiner.runtime("broker-a") == Runtime("5.4.0", 0.18)


@pytest.mark.parametrize(
    ("table", "runtime"),
    [
        ({}, Runtime("", None)),
        ({"brokerVersionDesc": "HIGHER_VERSION", "commitLogDiskRatio": "-1.0"}, Runtime("", None)),
    ],
)
def test_figures_that_are_not_there_are_none(examine: Examine, table: dict[str, str], runtime: Runtime) -> None:
    examiner, _ = examine({RUNTIME: says({"table": table})})
    assert examiner.runtime("broker-a") == runtime


def test_versions_are_read_off_their_names() -> None:
    assert [version_of(name) for name in ("V4_9_7", "V5_5_1_SNAPSHOT", "5.4", "")] == ["4.9.7", "5.5.1", "", ""]


@pytest.mark.parametrize(
    ("attributes", "message_type"),
    [({"message.type": "TRANSACTION"}, "TRANSACTION"), ({}, "NORMAL"), (None, "NORMAL")],
)
def test_a_topic_has_a_type_where_the_broker_knows_types(
    examine: Examine, attributes: dict[str, str] | None, message_type: str
) -> None:
    examiner, _ = examine({TOPIC: says({"attributes": attributes, "perm": 6, "writeQueueNums": 4})})
    assert examiner.topic("broker-a", "payments") == TopicFacts(message_type, 4, 6)


def test_a_broker_that_tells_of_no_single_topic_is_asked_for_all(examine: Examine) -> None:
    # Given a broker of 4.9, which knows no types
    table = {"payments": {"perm": 6, "writeQueueNums": 8, "topicName": "payments"}}
    examiner, _ = examine({TOPICS: says({"topicConfigTable": table})})
    assert examiner.topic("broker-a", "payments") == TopicFacts(None, 8, 6)
    assert examiner.topic("broker-a", "orders") is None


def test_a_topic_that_is_not_there_is_none(examine: Examine) -> None:
    examiner, _ = examine({TOPIC: refuses(17, "No topic in this broker")})
    assert examiner.topic("broker-a", "payments") is None


def test_a_group_is_looked_for_in_the_list_of_all(examine: Examine) -> None:
    table = {"stock": {"consumeEnable": False, "retryMaxTimes": 3}}
    examiner, _ = examine({GROUPS: says({"subscriptionGroupTable": table})})
    assert examiner.group("broker-a", "stock") == GroupFacts(consumes=False, retries=3)
    assert examiner.group("broker-a", "shop") is None


def test_clients_of_a_producer_group_are_counted(examine: Examine) -> None:
    examiner, _ = examine({PRODUCERS: says({"connectionSet": [{"clientId": "a"}, {"clientId": "b"}]})})
    assert examiner.listeners("broker-a", "outbox-orders") == 2


def test_an_unknown_producer_group_has_no_clients(examine: Examine) -> None:
    examiner, _ = examine({PRODUCERS: refuses(1, "the producer group[outbox-orders] not exist")})
    assert examiner.listeners("broker-a", "outbox-orders") == 0


def test_another_system_error_is_no_answer(examine: Examine) -> None:
    examiner, _ = examine({PRODUCERS: refuses(1, "java.lang.NullPointerException")})
    with pytest.raises(CannotTell, match=r"connections of producer group outbox-orders: .*NullPointerException"):
        examiner.listeners("broker-a", "outbox-orders")


def pulls(count: int, minimum: int) -> Answer:
    """A queue of which the messages ``minimum`` to ``count`` are left, two of them in each answer."""

    def pulled(request: Frame) -> bytes:
        offset = int(request.ext["queueOffset"])
        ext = {"minOffset": str(minimum), "maxOffset": str(count), "nextBeginOffset": str(max(offset, minimum))}
        if not minimum <= offset < count:
            return answer(request, 21 if offset < minimum else 19, ext)
        following = min(offset + 2, count)
        ids = [f"id-{number}" for number in range(offset, following)]
        body = b"".join(stored_message("D", b"", {"UNIQ_KEY": it, "REAL_TOPIC": "payments"}) for it in ids)
        return answer(request, 0, ext | {"nextBeginOffset": str(following)}, body)

    return pulled


@pytest.mark.parametrize(
    ("count", "minimum", "limit", "ids"),
    [
        (0, 0, 4, []),
        (3, 0, 4, ["id-2", "id-1", "id-0"]),
        (9, 0, 3, ["id-8", "id-7", "id-6"]),
        (9, 7, 5, ["id-8", "id-7"]),
        (9, 9, 5, []),
    ],
)
def test_the_latest_discarded_halves_are_read(
    examine: Examine, count: int, minimum: int, limit: int, ids: list[str]
) -> None:
    # Given a discard topic of which the broker has deleted the first messages
    examiner, _ = examine({PULL: pulls(count, minimum)})
    found = examiner.discarded("broker-a", limit)
    # Then those that are left are counted, and the latest ones read
    assert found.count == count - minimum
    assert [half.unique_id for half in found.newest] == ids
    assert {half.topic for half in found.newest} <= {"payments"}


def test_a_discard_topic_that_is_not_there_is_empty(examine: Examine) -> None:
    examiner, _ = examine({PULL: refuses(17, "topic not exist")})
    assert examiner.discarded("broker-a", 5) == DiscardTopic(0, [])


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"table":7}', b"\xff"])
def test_nonsense_is_no_answer(examine: Examine, body: bytes) -> None:
    examiner, _ = examine(dict.fromkeys((RUNTIME, TOPIC, GROUPS, PRODUCERS), says(body)))
    for question in (
        lambda: examiner.runtime("broker-a"),
        lambda: examiner.topic("broker-a", "payments"),
        lambda: examiner.group("broker-a", "stock"),
        lambda: examiner.listeners("broker-a", "outbox-orders"),
    ):
        with pytest.raises(CannotTell):
            question()


def test_a_refusal_is_told_on_one_line_with_what_to_check(examine: Examine) -> None:
    examiner, _ = examine({SETTINGS: refuses(16, "no permission\nsee the manual")})
    with pytest.raises(CannotTell) as refused:
        examiner.settings("broker-a")
    assert not isinstance(refused.value, OutOfReach)
    assert "\n" not in str(refused.value)
    assert "OUTBOX_SECRET_KEY" in str(refused.value)


def test_servers_that_do_not_answer_are_out_of_reach(examine: Examine) -> None:
    # Given a broker that went away after its name server named it, and a name server that is not there
    examiner, server = examine({})
    server.stop()
    with pytest.raises(OutOfReach):
        examiner.settings("broker-a")
    nobody = RemotingExaminer(f"127.0.0.1:{free_port()}")
    with pytest.raises(OutOfReach, match="no name server answers"):
        nobody.masters()
    nobody.close()


def test_nothing_but_questions_is_sent(examine: Examine) -> None:
    # Given every call once / Then no request is one that changes something; 352 would make the group
    examiner, server = examine({PULL: pulls(1, 0)})
    calls: list[Callable[[], object]] = [
        lambda: examiner.settings("broker-a"),
        lambda: examiner.runtime("broker-a"),
        lambda: examiner.topic("broker-a", "payments"),
        lambda: examiner.group("broker-a", "stock"),
        lambda: examiner.listeners("broker-a", "outbox-orders"),
        lambda: examiner.discarded("broker-a", 5),
    ]
    for call in calls:
        try:
            call()
        except CannotTell:
            continue  # this server refuses most
    assert {request.code for request in server.requests} <= READS
