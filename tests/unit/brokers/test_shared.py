"""A connection to the broker that several databases share."""

import threading
from collections.abc import Collection

import pytest

from outbox.brokers.base import ORIGIN, Answer, Check, Half, OnCheck
from outbox.brokers.shared import SharedBroker
from outbox.errors import SettingsError
from outbox.lifecycle import Verdict
from tests.integration.scripted import ScriptedBroker


def test_an_origin_is_served_once_at_a_time() -> None:
    # Given a database that is served over the connection
    shared = SharedBroker(ScriptedBroker())
    first = shared.of("shop.1a")
    # When another one says that it is the same, a copy, or listed twice; Then it is refused, and the remedy named
    with pytest.raises(SettingsError, match="outbox db adopt"):
        shared.of("shop.1a")
    # And others are not; nor is the same one, when it is opened anew
    shared.of("shop.2b")
    first.close()
    shared.of("shop.1a")


DEADLINE = 60.0


class Asking(ScriptedBroker):
    """Asks what the test says."""

    on_check: OnCheck

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        self.on_check = on_check

    def ask(self, origin: str) -> list[Verdict]:
        """One check, answered in this thread."""
        said: list[Verdict] = []
        half = Half("t", "00", "broker-a", "1", "g")
        self.on_check(Check(half, {ORIGIN: origin}), lambda verdict, _: said.append(verdict))  # type: ignore[arg-type, return-value]
        return said


def test_a_database_that_hangs_does_not_keep_the_threads_that_answer_checks() -> None:
    # Given two databases behind one connection, one of which hangs while a check is answered
    now, broker = [0.0], Asking()
    shared = SharedBroker(broker, lambda: now[0])
    begun, hangs = threading.Event(), threading.Event()

    def hanging(_: Check, answer: Answer) -> None:
        begun.set()
        assert hangs.wait(DEADLINE)
        now[0] += 10
        answer(Verdict.ROLLBACK, 0.0)

    shared.of("a").listen(["t"], hanging)
    shared.of("b").listen(["t"], lambda _, answer: answer(Verdict.COMMIT, 0.0))  # type: ignore[arg-type]
    thread = threading.Thread(target=broker.ask, args=("a",))
    thread.start()
    assert begun.wait(DEADLINE)
    # When more is asked about its halves; Then those stay open at once, and the other database answers
    now[0] += 4
    assert [broker.ask("a"), broker.ask("b")] == [[Verdict.UNKNOWN], [Verdict.COMMIT]]
    # When the answer has come; Then the next check finds out how it is now
    hangs.set()
    thread.join(DEADLINE)
    assert broker.ask("a") == [Verdict.ROLLBACK]
