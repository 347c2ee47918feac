"""Messages and handlers that would stop a consumer, or have it acknowledge what was not done."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from outbox.consumer import (
    BatchInbox,
    Duplicate,
    FencedLease,
    Inbox,
    LeasedInbox,
    Message,
    Outcome,
    Park,
    Permanent,
    Processed,
    Retry,
)
from tests.integration.conftest import Copies
from tests.integration.consumer.shop import keys_done, reasons, record, rows, shop
from tests.integration.consumer.test_failures import opened
from tests.unit.consumer.fakes import delivery

Work = Callable[[Sequence[Message], Session], object]


def refuse(_message: Message, _session: Session) -> None:
    raise Permanent("no")


def batched(engine: Engine, work: Work) -> BatchInbox:
    inbox = BatchInbox(engine, consumer="stock", lock_timeout=20)
    inbox.handler(topic="payments")(work)
    return inbox


def leased(engine: Engine, work: Callable[[Message, FencedLease], object]) -> LeasedInbox:
    inbox = LeasedInbox(engine, consumer="stock")
    inbox.handler(topic="payments")(work)
    return inbox


def kinds(outcomes: Sequence[Outcome]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


@pytest.mark.parametrize(
    "odd",
    [
        {"tag": "a\x00b"},
        {"tag": "t" * 3000},
        {"tag": "\udc80"},
        {"unique_id": "é\x00中" * 40},
        {"unique_id": "\udc80"},
        {"properties": {"a\x00": "\x00", "b\udc80": "\udc80"}},
    ],
    ids=["nul in the tag", "long tag", "no UTF-8 in the tag", "odd id", "no UTF-8 in the id", "odd properties"],
)
def test_a_message_is_parked_whatever_it_holds(engine: Engine, odd: dict[str, object]) -> None:
    # Given a message of others, with what a column cannot hold
    inbox, received = shop(engine, refuse), delivery(keys=("k",), body=b"\x00\xff", **odd)
    # When it is parked, twice / Then it is there once, and can be tried again
    assert inbox.park(received, "no")
    assert inbox.park(received, "no")
    (row,) = inbox.parked(10)
    assert isinstance(inbox.retry(row["id"]), Park)


@pytest.mark.parametrize("reason", ["a \x00 in it", "\udc80", "long " * 1000])
def test_a_message_is_parked_whatever_the_handler_said(engine: Engine, reason: str) -> None:
    def fail(_message: Message, _session: Session) -> None:
        raise Permanent(reason)

    inbox, received = shop(engine, fail), delivery(keys=("k",))
    outcome = inbox.process(received)
    assert isinstance(outcome, Park)
    assert inbox.park(received, outcome.reason)
    assert reasons(engine)[0].startswith("Permanent: ")


def test_a_tag_that_was_cut_comes_back_whole(engine: Engine) -> None:
    tag, seen = "t" * 300, list[str | None]()
    inbox = shop(engine, lambda message, _: seen.append(message.tag))
    inbox.park(delivery(keys=("k",), tag=tag, properties={"TAGS": tag}), "no")
    assert inbox.retry(inbox.parked(1)[0]["id"]) == Processed()
    assert seen == [tag]


def test_a_batch_that_was_committed_early_is_parked_and_no_repeat_of_itself(engine: Engine) -> None:
    # Given a handler that commits on the driver's own connection before all is done
    def work(messages: Sequence[Message], session: Session) -> None:
        record(messages[0], session)
        session.connection().connection.driver_connection.commit()  # type: ignore[union-attr]
        raise ValueError("and fails")

    # When a batch comes / Then nobody is told that it was done
    outcomes = batched(engine, work).process_batch([delivery(keys=("a",)), delivery(keys=("b",))])
    assert kinds(outcomes) == ["Park", "Park"]


def test_a_batch_s_message_that_exits_takes_no_other_with_it(engine: Engine) -> None:
    def work(messages: Sequence[Message], session: Session) -> None:
        for message in messages:
            record(message, session)
            if message.key == "bad":
                sys.exit(1)

    outcomes = batched(engine, work).process_batch([delivery(keys=(key,)) for key in ("a", "bad", "c")])
    assert kinds(outcomes) == ["Processed", "Retry", "Processed"]
    assert keys_done(engine) == ["a", "c"]


def test_a_message_that_kills_its_connection_is_told_from_an_outage(postgresql_copies: Copies) -> None:
    # Given a server that ends the connection of one message, each time
    def die(message: Message, session: Session) -> None:
        record(message, session)
        if message.key == "bad":
            session.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

    def die_together(messages: Sequence[Message], session: Session) -> None:
        for message in messages:
            die(message, session)

    with postgresql_copies(None) as url, opened(url) as engine:  # type: ignore[arg-type]
        # When it comes / Then the outcome says that the store was there when the handler began
        outcome = shop(engine, die).process(delivery(keys=("bad",)))
        assert isinstance(outcome, Retry)
        assert (outcome.outage, outcome.begun) == (True, True)
        # And in a batch it is found like any other
        outcomes = batched(engine, die_together).process_batch([delivery(keys=(key,)) for key in ("a", "bad", "c")])
        assert kinds(outcomes) == ["Processed", "Retry", "Processed"]
        assert keys_done(engine) == ["a", "c"]


def test_a_store_that_is_away_is_no_message_s_fault() -> None:
    outcome = shop("postgresql+psycopg://nobody@127.0.0.1:1/none").process(delivery(keys=("k",)))
    assert isinstance(outcome, Retry)
    assert (outcome.outage, outcome.begun) == (True, False)


def test_a_lease_s_transaction_that_failed_unheard_is_no_success(engine: Engine) -> None:
    # Given a handler that swallows, once, that its effect was undone
    fails = iter([True])

    def work(message: Message, lease: FencedLease) -> None:
        with suppress(DBAPIError), lease.transaction() as session:
            record(message, session)
            if next(fails, False):
                session.execute(sa.text("SELECT * FROM not_there"))

    inbox, received = leased(engine, work), delivery(keys=("k",))
    # When it comes twice / Then it takes effect the second time
    assert isinstance(inbox.process(received), Retry)
    assert inbox.process(received) == Processed()
    assert keys_done(engine) == ["k"]


def test_a_lease_has_one_transaction_at_a_time(engine: Engine) -> None:
    def work(message: Message, lease: FencedLease) -> None:
        with lease.transaction() as outer:
            record(message, outer)
            with lease.transaction() as inner:
                record(message, inner)

    inbox, received = leased(engine, work), delivery(keys=("k",))
    assert kinds([inbox.process(received), inbox.process(received)]) == ["Retry", "Retry"]
    assert keys_done(engine) == []


def test_a_procedure_that_commits_and_goes_on_is_never_called_done(mariadb_copies: Copies) -> None:
    # Given a procedure whose second write begins another transaction, by itself
    with mariadb_copies(None) as url, opened(url) as engine:  # type: ignore[arg-type]
        with engine.begin() as connection:
            write = "INSERT INTO effects (consumer, `key`) VALUES ('stock', '{}')"
            body = f"{write.format('one')}; COMMIT; {write.format('two')}"
            connection.exec_driver_sql(f"CREATE PROCEDURE halves() BEGIN {body}; END")
            connection.exec_driver_sql(f"CREATE PROCEDURE whole() BEGIN {write.format('three')}; END")

        def call(message: Message, session: Session) -> None:
            session.execute(sa.text(f"/* for {message.key} */ CALL {message.key}()"))
            if message.key == "halves":
                raise ValueError("and fails")

        inbox = shop(engine, call)
        # When it is called / Then the message is parked, where it would have been a repeat of itself the next time
        outcome = inbox.process(delivery(keys=("halves",)))
        assert isinstance(outcome, Park)
        assert keys_done(engine) == ["one"]
        # And a procedure that leaves the transaction alone is none of our business
        assert inbox.process(delivery(keys=("whole",))) == Processed()
        assert keys_done(engine) == ["one", "three"]


@pytest.mark.parametrize("end", ["/* x */ COMMIT AND CHAIN", "-- x\n  ;COMMIT", "/* x */ ROLLBACK AND CHAIN"])
def test_an_ending_behind_a_comment_is_refused(engine: Engine, end: str) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("has no such endings")

    def work(message: Message, session: Session) -> None:
        record(message, session)
        session.execute(sa.text(end))
        record(message, session)

    outcome = shop(engine, work).process(delivery(keys=("k",)))
    assert isinstance(outcome, Retry)
    assert rows(engine) == 0
    assert keys_done(engine) == []


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_conflict_that_rolls_everything_back_is_no_success(
    sqlite_copies: Copies, goes_on: bool, tmp_path: object
) -> None:
    # Given a constraint of SQLite that ends the transaction, and a handler that swallows it
    def work(message: Message, session: Session) -> None:
        record(message, session)
        with suppress(IntegrityError):
            session.execute(sa.text("INSERT INTO seen VALUES ('x')"))
        if goes_on:
            record(message, session)

    with sqlite_copies(tmp_path) as url, opened(url) as engine:  # type: ignore[arg-type]
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE seen (k TEXT UNIQUE ON CONFLICT ROLLBACK)")
            connection.exec_driver_sql("INSERT INTO seen VALUES ('x')")
        assert isinstance(shop(engine, work).process(delivery(keys=("k",))), Retry)
        assert keys_done(engine) == []
        assert rows(engine) == 0


@pytest.mark.parametrize("form", ["row_lock", "leased"])
def test_a_key_whose_message_can_never_work_can_be_forgotten(engine: Engine, form: str) -> None:
    # Given a message that left an undone row, and was corrected under the same key
    broken, corrected = delivery(keys=("k",), body=b"broken"), delivery(keys=("k",), body=b"corrected")

    def work(message: Message, session: Session) -> None:
        if message.body == b"broken":
            raise Permanent("cannot be read")
        record(message, session)

    def under_lease(message: Message, lease: FencedLease) -> None:
        with lease.transaction() as session:
            work(message, session)

    inbox: Inbox | LeasedInbox = leased(engine, under_lease)
    if form == "row_lock":
        inbox = shop(engine, work, row_lock=True)
    assert kinds([inbox.process(broken), inbox.process(corrected)]) == ["Park", "Park"]
    # When an operator has it forgotten / Then the corrected one takes effect
    assert inbox.forget("k")
    assert inbox.process(corrected) == Processed()
    assert inbox.process(corrected) == Duplicate()


def test_a_key_that_is_worked_on_is_not_forgotten(engine: Engine) -> None:
    said = list[bool]()

    def work(message: Message, lease: FencedLease) -> None:
        said.append(inbox.forget(message.key))

    inbox = leased(engine, work)
    assert inbox.process(delivery(keys=("k",))) == Processed()
    assert said == [False]


@pytest.mark.parametrize("found", [17, b"k", 0, ["k"]])
def test_a_key_of_another_type_is_refused_by_name(engine: Engine, found: object) -> None:
    inbox = Inbox(engine, consumer="stock")
    inbox.handler(topic="payments", key=lambda _: found)(record)  # type: ignore[arg-type,return-value]
    outcome = inbox.process(delivery(keys=("another",)))
    assert isinstance(outcome, Retry)
    assert type(found).__name__ in outcome.reason
