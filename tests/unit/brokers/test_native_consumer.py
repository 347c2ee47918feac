"""The parts of the push consumer that need neither library nor broker."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from outbox.brokers.native import quiet
from outbox.brokers.native.handover import Ending, Handover
from outbox.brokers.native.names import check_names
from outbox.brokers.native.places import Place
from outbox.brokers.native.quiet import until_quiet
from outbox.brokers.native.reception import RECONSUME_LATER, Reception
from outbox.brokers.native.returns import level_for
from outbox.brokers.source import Delivery
from outbox.errors import SettingsError
from tests.unit.consumer.fakes import DEADLINE, delivery

LONG = 300.0
PLACE = Place("host:1", "payments", 7, "unique")


@pytest.mark.parametrize("group", ["shop", "new-orders", "5s", "lnk", "In", "S1"])
def test_groups_that_the_client_does_not_survive_are_refused(group: str) -> None:
    # Given a group whose retry topic reads as %s or %n; When it is checked; Then the remedy is named
    with pytest.raises(SettingsError, match="begin otherwise"):
        check_names(group, ["payments"])


def test_topics_of_a_namespace_are_checked_too() -> None:
    # Given topics with a namespace; When they are checked; Then %p passes, and %s is refused
    check_names("east%outbox-shop", ["east%payments"])
    with pytest.raises(SettingsError, match="east%shipments"):
        check_names("east%outbox-shop", ["east%shipments"])


@pytest.mark.parametrize(("delay", "level"), [(0.0, 1), (1.0, 1), (1.1, 2), (10, 3), (7200, 18), (9000, 18)])
def test_a_delay_becomes_the_next_longer_level(delay: float, level: int) -> None:
    # Given a delay in seconds; When a level is chosen; Then it is not shorter, unless there is none
    assert level_for(delay) == level


@pytest.mark.parametrize(
    ("age", "rest"),
    [(0, 0), (2.35, 0), (2.5, 3), (3, 2.5), (4, 1.5), (5.6, 0), (32.3, 0), (33, 2.5), (35.5, 0), (3003, 2.5)],
)
def test_the_client_is_not_shut_down_while_it_asks_for_routes(age: float, rest: float) -> None:
    # Given a start that took half a second; When it is to end at some age; Then it waits out what comes every 30 s
    assert until_quiet(100.0, 100.5, 100.0 + age) == pytest.approx(rest)


def test_a_time_for_which_the_process_stands_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a client that may be asking for routes, and a process that is stopped in the middle of its first rest
    now, rested = [103.0], list[float]()
    stops = iter([20.0])

    def rest(seconds: float) -> None:
        rested.append(seconds)
        now[0] += seconds + next(stops, 0.0)

    monkeypatch.setattr(quiet, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", rest)
    # When it waits until the client does not; Then it does so for as long as if it had not been stopped
    quiet.wait_until_quiet(100.0, 100.5)
    assert sum(rested) == pytest.approx(2.5)
    # And once more, where it comes to itself when the client asks again
    stops = iter([30.0])
    now[0] = 103.0
    rested.clear()
    quiet.wait_until_quiet(100.0, 100.5)
    assert now[0] - 100.0 >= 35.5


class Waiting:
    """A callback thread with a message."""

    def __init__(self, handover: Handover) -> None:
        self.endings: list[Ending] = []
        self.given = delivery()
        self._thread = threading.Thread(target=lambda: self.endings.append(handover.offer(self.given, PLACE)))
        self._thread.start()

    def ending(self) -> Ending:
        """What it was told, once it is."""
        self._thread.join(DEADLINE)
        return self.endings[0]


def received(handover: Handover, invisible: float = LONG) -> Delivery:
    """The one message that is there."""
    (taken,) = handover.take(1, DEADLINE, invisible)
    return taken


def test_a_message_is_ended_once() -> None:
    # Given a delivery that somebody is answering
    handover = Handover()
    waiting = Waiting(handover)
    taken = received(handover)
    assert handover.claim(taken) == PLACE
    # When others answer or renew it, and everything closes; Then it is theirs no more, and the first answer counts
    assert handover.claim(taken) is None
    assert handover.renew(taken, LONG) is None
    handover.close()
    handover.finish(taken, Ending.DONE)
    assert waiting.ending() is Ending.DONE
    assert handover.claim(taken) is None


def test_what_expires_is_left() -> None:
    # Given a delivery for a moment; When it is over; Then the thread gives it back, and nobody can answer it
    handover = Handover()
    waiting = Waiting(handover)
    taken = received(handover, invisible=0.01)
    assert waiting.ending() is Ending.LEFT
    assert handover.claim(taken) is None


def test_a_renewal_replaces_the_receipt() -> None:
    # Given a delivery that was renewed
    handover = Handover()
    waiting = Waiting(handover)
    old = received(handover, invisible=LONG)
    new = handover.renew(old, 2 * LONG)
    # When the old receipt is used; Then it has no effect, and the new one has
    assert new is not None
    assert new.invisible_until > old.invisible_until
    assert handover.claim(old) is None
    assert handover.claim(new) == PLACE
    handover.finish(new, Ending.FAILED)
    assert waiting.ending() is Ending.FAILED


def test_closing_leaves_what_waits_and_what_comes() -> None:
    # Given one delivery out and one that nobody has received
    handover = Handover()
    first = Waiting(handover)
    taken = received(handover)
    second = Waiting(handover)
    # When everything closes; Then both are left, a third one too, and nothing is handed out
    handover.close()
    assert [first.ending(), second.ending(), Waiting(handover).ending()] == [Ending.LEFT] * 3
    assert handover.claim(taken) is None
    assert handover.take(1, 0.0, LONG) == []


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def function(*_: object) -> Any:
        raise error

    return function


ERRORS = (ValueError("bad"), SystemExit(1), KeyboardInterrupt())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_no_exception_becomes_success(error: BaseException) -> None:
    # Given a library whose getters fail; When the client calls; Then the batch comes again (an exception would be 0)
    class Library:
        GetMessageTopic = staticmethod(raising(error))

    reception = Reception(Library(), Handover(), None, None)  # type: ignore[arg-type]
    assert reception.on_message(1, 2) == RECONSUME_LATER
