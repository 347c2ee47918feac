"""The inbox on real databases, one delivery at a time."""

import time
import unicodedata
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.consumer import (
    Duplicate,
    Filtered,
    Inbox,
    Message,
    NoKey,
    Park,
    Permanent,
    Processed,
    Retry,
    header,
    parking,
    retention,
)
from outbox.consumer.schema import inbox as inbox_table
from outbox.consumer.schema import parked
from outbox.errors import NoTransaction, SchemaError, SettingsError
from outbox.schema import outbox as outbox_table
from outbox.store.clock import utc_after
from tests.integration.consumer.shop import count, effects, keys_done, reasons, record, rows, shop
from tests.services.databases import fresh_database
from tests.unit.consumer.fakes import delivery

#: Both forms keep the same promises.
FORMS = pytest.mark.parametrize("row_lock", [False, True], ids=["insert", "row-lock"])


@pytest.fixture
def inbox(migrated_url: str, engine: Engine) -> Iterator[Inbox]:
    inbox = shop(migrated_url)
    yield inbox
    inbox.close()


@FORMS
def test_a_repeat_has_no_effect(migrated_url: str, engine: Engine, row_lock: bool) -> None:
    # Given a message that was processed
    inbox = shop(migrated_url, row_lock=row_lock)
    first = delivery(keys=("k",))
    assert inbox.process(first) == Processed()
    # When it is delivered again, and sent again under another id
    again = [inbox.process(replace(first, attempt=2)), inbox.process(delivery(keys=("k",)))]
    # Then both are known
    assert again == [Duplicate(), Duplicate()]
    assert keys_done(engine) == ["k"]
    inbox.close()


@FORMS
def test_effect_message_and_inbox_row_are_one(migrated_url: str, engine: Engine, row_lock: bool) -> None:
    # Given a handler that writes, sends, and fails the first time
    producer, failures = Outbox(origin="tests"), iter([ValueError("first"), None])

    def on_paid(message: Message, session: Session) -> None:
        record(message, session)
        producer.add(session, topic="shipments", key=message.key, payload={"n": 1})
        if error := next(failures):
            raise error

    inbox, received = shop(migrated_url, on_paid, row_lock=row_lock), delivery(keys=("k",))
    # When it fails / Then nothing is left that anybody would take for done
    assert inbox.process(received) == Retry("ValueError: first")
    assert keys_done(engine) == []
    # When it succeeds / Then everything is there, once
    assert inbox.process(received) == Processed()
    assert inbox.process(received) == Duplicate()
    with engine.connect() as connection:
        assert (count(connection, effects), count(connection, outbox_table), count(connection, inbox_table)) == (
            1,
            1,
            1,
        )
    inbox.close()


ODD_KEYS = [
    *("A1", "a1", "a1 ", " a1", "a1\u00a0", "a 1", "ß", "ss", "'; --", "%", "\\", "\U0001f4b3"),
    *("x" * 300, "x" * 299 + "y"),
    *(unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD")),
]


@FORMS
def test_keys_that_look_alike_are_apart(migrated_url: str, engine: Engine, row_lock: bool) -> None:
    # Given keys that some collation calls equal, or some column cuts
    inbox = shop(migrated_url, row_lock=row_lock)
    deliveries = [delivery(properties={"outbox-key": key}) for key in ODD_KEYS]
    # When all are delivered, twice
    outcomes = [inbox.process(each) for each in deliveries + deliveries]
    # Then each took effect once
    assert outcomes == [Processed()] * len(ODD_KEYS) + [Duplicate()] * len(ODD_KEYS)
    assert sorted(keys_done(engine)) == sorted(ODD_KEYS)
    inbox.close()


def test_a_collation_that_calls_keys_equal_would_lose_messages(mariadb: str) -> None:
    # Given the naive table: a text key under the usual collation
    with fresh_database(mariadb) as url:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE naive (k VARCHAR(50) PRIMARY KEY) COLLATE utf8mb4_general_ci")
            # When three distinct keys are inserted with INSERT IGNORE
            seen = [
                connection.execute(sa.text("INSERT IGNORE INTO naive VALUES (:k)"), {"k": key}).rowcount
                for key in ("A1", "a1", "a1 ")
            ]
        engine.dispose()
    # Then two of them pass for duplicates
    assert seen == [1, 0, 0]


@FORMS
def test_the_same_key_with_another_payload_is_parked(migrated_url: str, engine: Engine, row_lock: bool) -> None:
    # Given a key that was used
    inbox = shop(migrated_url, row_lock=row_lock)
    inbox.process(delivery(keys=("k",), body=b"1"))
    # When it comes with another body, tag or topic
    inbox.handler(topic="refunds")(record)
    others = [
        delivery(keys=("k",), body=b"2"),
        delivery(keys=("k",), body=b"1", tag="t"),
        delivery(keys=("k",), body=b"1", topic="refunds"),
    ]
    outcomes = [inbox.process(each) for each in others]
    # Then nothing is taken for a duplicate
    assert [type(outcome) for outcome in outcomes] == [Park] * 3
    assert "another payload" in str(outcomes[0])
    assert "topic 'payments'" in str(outcomes[2])
    assert keys_done(engine) == ["k"]
    inbox.close()


def test_two_consumers_each_have_their_effect(migrated_url: str, engine: Engine) -> None:
    # Given two consumers in one database
    received = delivery(keys=("k",))
    for consumer in ("stock", "points", "Stock"):
        inbox = Inbox(engine, consumer=consumer)
        inbox.handler(topic="payments")(lambda message, session, name=consumer: record(message, session, name))
        # When both get the message, twice / Then each takes effect once
        assert inbox.process(received) == Processed()
        assert inbox.process(received) == Duplicate()
    assert keys_done(engine, "stock") == keys_done(engine, "points") == ["k"]


def test_a_message_without_key_or_subscription_has_no_effect(inbox: Inbox, engine: Engine) -> None:
    # Given an inbox that also wants one tag of another topic
    inbox.handler(topic="orders", tag="new")(record)
    # When messages come without one key, or with another tag
    outcomes = [
        inbox.process(delivery(keys=())),
        inbox.process(delivery(keys=("a", "b"))),
        inbox.process(delivery(keys=(), properties={"outbox-key": "  "})),
        inbox.process(delivery(topic="orders", tag="old")),
    ]
    # Then the handler never sees them
    assert [type(outcome) for outcome in outcomes] == [NoKey, NoKey, NoKey, Filtered]
    assert rows(engine) == 0


def test_a_configured_key_and_the_message_id(migrated_url: str, engine: Engine) -> None:
    # Given a topic of a foreign producer, and one without any key
    inbox = Inbox(migrated_url, consumer="stock")
    inbox.handler(topic="foreign", key=header("order"))(record)
    inbox.handler(topic="anonymous", message_id=True)(record)
    # When messages come twice
    foreign, anonymous = (
        delivery(topic="foreign", properties={"order": "7"}, keys=()),
        delivery(topic="anonymous", keys=()),
    )
    outcomes = [inbox.process(each) for each in (foreign, foreign, anonymous, anonymous)]
    # Then the property, or the broker's id, tells the repeat
    assert outcomes == [Processed(), Duplicate()] * 2
    assert keys_done(engine) == sorted(["7", anonymous.unique_id])
    inbox.close()


def test_an_extractor_that_fails_is_a_retry(migrated_url: str, engine: Engine) -> None:
    inbox = Inbox(migrated_url, consumer="stock")
    inbox.handler(topic="payments", key=lambda delivery: delivery.properties["missing"])(record)
    received = delivery()
    assert isinstance(inbox.process(received), Retry)
    # And the message can be parked all the same
    assert inbox.park(received, "given up")
    assert reasons(engine) == ["given up"]
    inbox.close()


def permanent(message: Message, session: Session) -> None:
    record(message, session)
    raise Permanent("no such order")


def test_a_permanent_failure_is_parked_with_everything_it_carried(migrated_url: str, engine: Engine) -> None:
    # Given a handler that gives a message up
    inbox = shop(migrated_url, permanent)
    received = delivery(properties={"outbox-key": "k", "x": "y"}, tag="t", body=b"\x00\xff", attempt=4)
    outcome = inbox.process(received)
    assert outcome == Park("Permanent: no such order")
    # When it is parked, twice because of a crash in between
    assert isinstance(outcome, Park)
    assert inbox.park(received, outcome.reason)
    assert inbox.park(replace(received, attempt=5), outcome.reason)
    # Then it is there once, whole, and had no effect
    with engine.connect() as connection:
        row = connection.execute(sa.select(parked)).one()
    assert (row.consumer, row.topic, bytes(row.key), row.tag, bytes(row.body), row.properties, row.unique_id) == (
        "stock", "payments", b"k", "t", b"\x00\xff", {"outbox-key": "k", "x": "y"}, received.unique_id,
    )  # fmt: skip
    assert (row.attempt, row.reason) == (4, "Permanent: no such order")
    assert keys_done(engine) == []
    assert rows(engine) == 0
    inbox.close()


def test_a_message_that_somebody_else_parks_meanwhile_is_there_once(
    inbox: Inbox, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a parking that looks just before another process has stored the message
    received, is_parked = delivery(), parking._is_parked
    inbox.park(received, "first")
    looks = iter([False])
    monkeypatch.setattr(parking, "_is_parked", lambda *asked: next(looks, None) is not False and is_parked(*asked))
    # When it is parked / Then that is fine, and it is there once
    assert inbox.park(received, "second")
    assert reasons(engine) == ["first"]


def test_the_message_id_is_no_identity_of_a_fact(migrated_url: str, engine: Engine) -> None:
    # Given a producer that sends one fact twice: the broker draws a new id for the second one
    sent, again = delivery(keys=("k",)), delivery(keys=("k",))
    # When one consumer goes by the id, and one by the key
    naive = Inbox(engine, consumer="naive")
    naive.handler(topic="payments", key=lambda each: each.unique_id)(
        lambda message, session: record(message, session, "naive")
    )
    ours = shop(engine)
    outcomes = [each.process(one) for each in (naive, ours) for one in (sent, again)]
    # Then only the key tells
    assert outcomes == [Processed(), Processed(), Processed(), Duplicate()]
    assert len(keys_done(engine, "naive")) == 2
    assert keys_done(engine) == ["k"]


@pytest.mark.parametrize("age", [None, 0.0, 6 * 86400.0])
def test_a_message_within_the_retention_takes_effect(inbox: Inbox, age: float | None) -> None:
    born_at = None if age is None else time.time() - age
    assert inbox.process(delivery(born_at=born_at)) == Processed()


def test_a_message_older_than_the_retention_is_parked(inbox: Inbox, engine: Engine) -> None:
    # Given a message whose effect would be forgotten by now
    old = delivery(born_at=time.time() - 8 * 86400)
    # When it comes, Then it has no effect, and an operator hears why
    outcome = inbox.process(old)
    assert isinstance(outcome, Park)
    assert outcome.reason == "sent 192 h ago, longer than effects are remembered (168 h)"


def test_a_reason_of_any_length_can_be_parked(inbox: Inbox, engine: Engine) -> None:
    assert inbox.park(delivery(), "é" * 5000)
    assert reasons(engine) == ["é" * 1000]


def test_retention_forgets_old_effects_in_batches_and_no_live_claim(
    migrated_url: str, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    # Given old, new and undone rows, and those of another consumer
    inbox = shop(migrated_url, retention=3600.0)
    for _ in range(3):
        inbox.process(delivery())
    other = Inbox(engine, consumer="points")
    other.handler(topic="payments")(record)
    other.process(delivery())
    with engine.begin() as connection:
        connection.execute(inbox_table.update().values(done_at=utc_after(-7200)))
        undone = {
            "consumer": "stock",
            "key": b"undone",
            "topic": "t",
            "payload_hash": b"h",
            "received_at": utc_after(-7200),
        }
        connection.execute(inbox_table.insert().values(**undone))
    inbox.process(delivery(keys=("new",)))
    # When the consumer purges
    assert retention.purge(engine, "stock", 3600.0, limit=2) == 2
    assert inbox.purge() == 1
    assert inbox.purge() == 0
    # Then the new one, the undone one and the other consumer's are left
    assert rows(engine) == 3
    # And a retention that the broker may outlast is told
    inbox.check()
    assert "retention: 1 h is shorter than the 149 h" in caplog.text
    inbox.close()


def test_an_undone_row_is_forgotten_once_its_message_cannot_come_again(inbox: Inbox, engine: Engine) -> None:
    # Given rows of handlers that failed for good, long ago and lately, and one that is still worked on
    long_ago, lately = utc_after(-retention.SHORTEST_RETENTION - 7 * 86400), utc_after(-retention.HOUR)
    with engine.begin() as connection:
        for key, received_at, lease_until in (
            (b"old", long_ago, None),
            (b"over", long_ago, lately),
            (b"young", lately, None),
            (b"worked on", long_ago, utc_after(retention.HOUR)),
        ):
            row = {"consumer": "stock", "key": key, "topic": "t", "payload_hash": b"h"}
            connection.execute(inbox_table.insert().values(**row, received_at=received_at, lease_until=lease_until))
    # When the consumer purges; Then only what can never be asked for again is gone
    assert [inbox.purge(), inbox.purge()] == [2, 0]
    with engine.connect() as connection:
        assert set(connection.execute(sa.select(inbox_table.c.key)).scalars()) == {b"young", b"worked on"}


def test_a_consumer_that_cannot_work_says_so_before_it_receives(database_url: str) -> None:
    # Given no tables, no handlers, no name / When it is checked / Then the remedy is named
    inbox = shop(database_url)
    with pytest.raises(SchemaError, match="outbox db upgrade"):
        inbox.check()
    with pytest.raises(SettingsError, match="no handlers"):
        Inbox(database_url, consumer="stock").check()
    for name in ("", " ", "x" * 101, "a\n"):
        with pytest.raises(SettingsError, match="consumer"):
            Inbox(database_url, consumer=name)
    inbox.close()


def test_an_engine_in_autocommit_keeps_nothing_of_a_failure(engine: Engine) -> None:
    # Given an engine whose statements would commit by themselves
    def failing(message: Message, session: Session) -> None:
        record(message, session)
        raise ValueError("after the effect")

    inbox = shop(engine.execution_options(isolation_level="AUTOCOMMIT"), failing)
    # When a handler fails after its effect
    outcome = inbox.process(delivery())
    # Then neither effect nor row is left: the inbox refuses the engine, or brings it back into transactions
    assert isinstance(outcome, Retry)
    if engine.dialect.name == "postgresql":
        assert NoTransaction.__name__ in outcome.reason
    assert rows(engine) == 0
    assert keys_done(engine) == []
