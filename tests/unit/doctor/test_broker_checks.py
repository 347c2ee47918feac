"""Each finding about a broker: absent where all is well, present where one thing is changed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from outbox.brokers.examiner import Discarded, DiscardTopic, GroupFacts, Runtime, TopicFacts
from outbox.doctor.broker_checks import (
    Expected,
    of_discarded,
    of_group,
    of_listeners,
    of_runtime,
    of_settings,
    of_topic,
)
from outbox.doctor.findings import Level
from outbox.message import Mode
from tests.unit.doctor.cases import ids, not_ok

EXPECTED: Final = Expected(retention=604800, lease=30, broker_retention=259200, check_horizon=900)
#: A broker of 5.4 whose operator thought of everything.
HEALTHY: Final[Mapping[str, str]] = {
    "autoCreateSubscriptionGroup": "true",
    "autoCreateTopicEnable": "false",
    "brokerPermission": "6",
    "brokerRole": "SYNC_MASTER",
    "diskMaxUsedSpaceRatio": "75",
    "fileReservedTime": "72",
    "flushDiskType": "SYNC_FLUSH",
    "messageIndexEnable": "true",
    "timerWheelEnable": "true",
    "transactionCheckInterval": "30000",
    "transactionCheckMax": "15",
    "transactionOpBatchInterval": "3000",
    "transactionTimeOut": "6000",
}
TOPIC: Final = TopicFacts("TRANSACTION", 8, 6)
ORIGIN: Final = "orders/0123456789abcdef"


def half(origin: str, key: str = "order-1") -> Discarded:
    return Discarded("AA", key, "payments", origin, datetime(2030, 1, 31, 8, tzinfo=UTC))


def test_a_healthy_broker_is_looked_at_in_full_and_nothing_is_found() -> None:
    findings = [*of_settings("a", HEALTHY, EXPECTED), *of_runtime("a", Runtime("5.4.0", 0.5), HEALTHY)]
    assert not_ok(findings) == {}
    assert len(ids(findings)) == 13
    assert {finding.about for finding in findings} == {"broker a"}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"messageIndexEnable": "false"}, {"message-index": Level.PROBLEM}),
        (
            {"transactionCheckMax": "1", "transactionTimeOut": "0"},
            {"check-horizon": Level.WARNING, "check-batch": Level.WARNING},
        ),
        ({"transactionOpBatchInterval": "6000"}, {"check-batch": Level.WARNING}),
        ({"transactionOpBatchInterval": "5999"}, {}),
        ({"transactionCheckInterval": "2000", "transactionTimeOut": "9000"}, {"check-batch": Level.WARNING}),
        ({"transactionCheckMax": "30"}, {"check-horizon-setting": Level.NOTE}),
        ({"transactionCheckInterval": "60000000"}, {"retention": Level.PROBLEM, "check-horizon-setting": Level.NOTE}),
        ({"fileReservedTime": "48"}, {"broker-retention": Level.WARNING}),
        ({"fileReservedTime": "96"}, {}),
        ({"flushDiskType": "ASYNC_FLUSH"}, {"flush-type": Level.NOTE}),
        ({"brokerRole": "ASYNC_MASTER"}, {"broker-role": Level.NOTE}),
        ({"brokerPermission": "4"}, {"broker-permission": Level.WARNING}),
        ({"autoCreateTopicEnable": "true"}, {"auto-create-topics": Level.NOTE}),
        ({"timerWheelEnable": "false"}, {"timer-wheel": Level.NOTE}),
    ],
    ids=str,
)
def test_a_setting_is_judged(changed: Mapping[str, str], found: Mapping[str, Level]) -> None:
    assert not_ok(of_settings("a", {**HEALTHY, **changed}, EXPECTED)) == found


def test_our_own_settings_are_judged_by_the_brokers() -> None:
    # Given a broker that asks for 456 s; When rows are kept no longer; Then that is a problem
    assert not_ok(of_settings("a", HEALTHY, replace(EXPECTED, retention=456))) == {"retention": Level.PROBLEM}
    # And a lease that outlives all checks is a warning
    assert not_ok(of_settings("a", HEALTHY, replace(EXPECTED, lease=456))) == {"check-horizon": Level.WARNING}


def test_what_a_broker_does_not_say_is_left_out() -> None:
    # Given an old broker, or one that talks nonsense / Then nothing is made up
    assert list(of_settings("a", {}, EXPECTED)) == []
    assert "retention" not in ids(of_settings("a", {**HEALTHY, "transactionCheckMax": "many"}, EXPECTED))
    assert list(of_runtime("a", Runtime("", None), {})) == []


@pytest.mark.parametrize(
    ("runtime", "found"),
    [
        (Runtime("5.5.0", 0.1), {"broker-version": Level.WARNING}),
        (Runtime("5.5.1", 0.1), {"broker-version": Level.WARNING}),
        (Runtime("4.9.7", 0.74), {}),
        (Runtime("5.4.0", 0.75), {"broker-disk": Level.WARNING}),
        (Runtime("5.4.0", 0.9), {"broker-disk": Level.PROBLEM}),
    ],
    ids=str,
)
def test_version_and_disk_are_judged(runtime: Runtime, found: Mapping[str, Level]) -> None:
    assert not_ok(of_runtime("a", runtime, HEALTHY)) == found


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ({"a": TOPIC, "b": None}, {}),
        ({"a": replace(TOPIC, message_type="MIXED")}, {}),
        ({"a": replace(TOPIC, message_type=None)}, {}),
        ({"a": None, "b": None}, {"topic": Level.PROBLEM}),
        ({"a": replace(TOPIC, message_type="NORMAL"), "b": TOPIC}, {"topic-type": Level.WARNING}),
        ({"a": replace(TOPIC, write_queues=0)}, {"topic-queues": Level.PROBLEM}),
        ({"a": replace(TOPIC, write_queues=0), "b": TOPIC}, {}),
        ({"a": replace(TOPIC, permission=4)}, {"topic-permission": Level.PROBLEM}),
        ({"a": replace(TOPIC, permission=4), "b": TOPIC}, {"topic-permission": Level.WARNING}),
        ({"a": replace(TOPIC, permission=2)}, {"topic-permission": Level.WARNING}),
    ],
    ids=str,
)
def test_a_topic_is_judged(at: Mapping[str, TopicFacts | None], found: Mapping[str, Level]) -> None:
    assert not_ok(of_topic("payments", Mode.TRANSACTIONAL, at)) == found


def test_a_topic_of_plain_rows_may_have_any_type() -> None:
    assert not_ok(of_topic("logs", Mode.PLAIN, {"a": replace(TOPIC, message_type="FIFO")})) == {}


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ({"a": GroupFacts(consumes=True, retries=16)}, {}),
        ({"a": GroupFacts(consumes=True, retries=None)}, {}),
        ({"a": None}, {"consumer-group": Level.NOTE}),
        ({"a": GroupFacts(consumes=True, retries=16), "b": None}, {"consumer-group": Level.NOTE}),
        ({"a": GroupFacts(consumes=False, retries=16)}, {"consumer-group-enabled": Level.PROBLEM}),
        ({"a": GroupFacts(consumes=True, retries=3)}, {"consumer-group-retries": Level.NOTE}),
    ],
    ids=str,
)
def test_a_consumer_group_is_judged(at: Mapping[str, GroupFacts | None], found: Mapping[str, Level]) -> None:
    assert not_ok(of_group("stock", at)) == found


def test_a_group_without_a_listener_matters_where_rows_are_open() -> None:
    # Given a group with a listener, an idle one without, and one without under which rows are open
    assert of_listeners("g at a", 1, 3, needed=True).level is Level.OK
    assert not_ok([of_listeners("g at a", 0, 0, needed=False)]) == {"listener-registered": Level.NOTE}
    needed = of_listeners("g at a", 0, 3, needed=True)
    # Then each is judged for itself, and the rows are counted
    assert (needed.level, needed.about) == (Level.WARNING, "producer group g at a")
    assert needed.seen == "0 registered, 3 committed rows"


@pytest.mark.parametrize(
    ("halves", "origin", "found"),
    [
        ([], ORIGIN, {}),
        ([half("")], ORIGIN, {"discarded-halves": Level.NOTE}),
        ([half("stock/0123456789abcdef")], ORIGIN, {"discarded-halves": Level.NOTE}),
        ([half(ORIGIN)], ORIGIN, {"discarded-halves": Level.WARNING}),
        ([half("orders/another")], ORIGIN, {"discarded-halves": Level.NOTE, "discarded-foreign": Level.WARNING}),
        ([half("orders/another")], "", {"discarded-halves": Level.WARNING}),
    ],
    ids=str,
)
def test_discarded_halves_are_judged(halves: list[Discarded], origin: str, found: Mapping[str, Level]) -> None:
    assert not_ok(of_discarded("a", DiscardTopic(len(halves), halves), origin, "orders")) == found


def test_the_latest_discarded_halves_are_named_and_the_others_counted() -> None:
    # Given more of ours than are looked at, among others
    newest = [half(ORIGIN, f"order-{number}") for number in range(5)] + [half("")]
    (finding,) = of_discarded("a", DiscardTopic(40, newest), ORIGIN, "orders")
    # Then the count is the broker's, and the first ones are named with key, topic and time
    assert finding.seen.startswith(
        "40 lie there, 5 of the 6 newest are ours: order-0 for payments at 2030-01-31T08:00:00Z"
    )
    assert finding.seen.endswith("order-2 for payments at 2030-01-31T08:00:00Z; …")
