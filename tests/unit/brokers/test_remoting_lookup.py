"""What an answer to a look-up proves, and what it does not."""

from datetime import UTC, datetime

import pytest

from outbox.brokers.base import (
    Half,
)
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.frames import Frame
from outbox.verdict import Sighting
from tests.contracts.rig import PATIENCE, look_up
from tests.unit.brokers.remoting_opened import GROUP, TOPIC, Open
from tests.unit.brokers.remoting_server import FakeServer, answer, healthy, stored_message


def runtime(written: int = 100, behind: int = 0, earliest: int = 0, booted: int = -1) -> bytes:
    """The body of a broker's runtime figures; messages of the fake server are stored at 0."""
    table = f'"commitLogMaxOffset":"{written}","dispatchBehindBytes":"{behind}","earliestMessageTimeStamp":"{earliest}"'
    return f'{{"table":{{{table},"bootTimestamp":"{booted}"}}}}'.encode()


class LookUps:
    """A broker that is asked whether a message is visible."""

    def __init__(
        self,
        *found: bytes,
        figures: bytes = runtime(),
        settings: str = "messageIndexEnable=true",
        in_place: bytes = b"",
        indexed: bytes = b"",
    ) -> None:
        self.in_place = in_place
        self.indexed = indexed
        self.found = b"".join(found)
        self.figures = [figures]
        self.settings = f"brokerRole=ASYNC_MASTER\naliyunSecretKey=secret\n{settings}\n"

    def __call__(self, server: FakeServer, request: Frame) -> bytes | None:
        """Answers the questions of a look-up."""
        if request.code == Request.QUERY_MESSAGE:
            found = self.indexed if request.ext["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC" else self.found
            return answer(request, body=found) if found else answer(request, 22, remark="no message")
        if request.code == Request.VIEW_MESSAGE:
            missing = answer(request, 1, remark="can not find message by the offset, 1001")
            return answer(request, body=self.in_place) if self.in_place else missing
        if request.code == Request.BROKER_CONFIG:
            return answer(request, body=self.settings.encode())
        return answer(request, body=self.figures.pop(0) if len(self.figures) > 1 else self.figures[0])


NOW = datetime.now(UTC)


def named(half_id: str, topic: str = TOPIC) -> bytes:
    """A visible message of this id."""
    return stored_message(topic, b"body", {"UNIQ_KEY": half_id})


#: A store whose oldest message is younger than the decision.
YOUNG = runtime(earliest=int(NOW.timestamp() * 1000) + 1)

#: A broker that was started after the decision.
REBOOTED = runtime(booted=int(NOW.timestamp() * 1000) + 1)


@pytest.mark.parametrize(
    ("look_ups", "sighting"),
    [
        (LookUps(named("other"), named("ABC")), Sighting.VISIBLE),
        (LookUps(), Sighting.ABSENT),
        (LookUps(named("other")), Sighting.ABSENT),
        (LookUps(named("ABC", "another topic")), Sighting.ABSENT),
        (LookUps(*[named("other")] * 32), Sighting.CANNOT_TELL),
        (LookUps(b"noise"), Sighting.CANNOT_TELL),
        (LookUps(settings="messageIndexEnable=false"), Sighting.CANNOT_TELL),
        (LookUps(settings=""), Sighting.CANNOT_TELL),
        (LookUps(settings="messageIndexEnable=true\nbrokerRole=SLAVE"), Sighting.CANNOT_TELL),
        (LookUps(figures=YOUNG), Sighting.EXPIRED),
        (LookUps(figures=YOUNG, in_place=named("other")), Sighting.EXPIRED),
        (LookUps(figures=YOUNG, in_place=named("ABC")), Sighting.ABSENT),
        (LookUps(figures=YOUNG, in_place=b"noise"), Sighting.CANNOT_TELL),
        (LookUps(figures=runtime(earliest=-1)), Sighting.EXPIRED),
        (LookUps(figures=runtime(earliest=-1), in_place=named("ABC")), Sighting.ABSENT),
        (LookUps(figures=REBOOTED, in_place=named("ABC")), Sighting.CANNOT_TELL),
        (LookUps(figures=REBOOTED, in_place=named("ABC"), indexed=named("ABC")), Sighting.ABSENT),
        (LookUps(figures=REBOOTED, in_place=named("ABC"), indexed=b"noise"), Sighting.CANNOT_TELL),
        (LookUps(figures=runtime(behind=1)), Sighting.CANNOT_TELL),
        (LookUps(figures=b"{}"), Sighting.CANNOT_TELL),
        (LookUps(named("ABC"), figures=runtime(behind=1)), Sighting.VISIBLE),
    ],
)
def test_what_a_look_up_proves(opened: Open, look_ups: LookUps, sighting: Sighting) -> None:
    # Given a broker that answers so; When a half is looked up; Then this is proved
    _, broker = opened(look_ups)
    assert look_up(broker, Half(TOPIC, "ABC", "broker-a", "5 1001", GROUP), NOW) is sighting


def test_absence_waits_for_the_index(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an index that is behind at first, and time for it
    monkeypatch.setattr("outbox.brokers.remoting.lookup._CATCH_UP", PATIENCE)
    look_ups = LookUps()
    look_ups.figures = [runtime(100, 40), runtime(130, 40), runtime(140, 40)]
    server, broker = opened(look_ups)
    # When a half is looked up; Then it is absent once everything before the call is in, and was asked for again
    assert look_up(broker, Half(TOPIC, "ABC", "broker-a", "5 1001", GROUP), NOW) is Sighting.ABSENT
    codes = [request.code for request in server.requests if request.code in {12, 28}]
    assert codes == [12, 28, 28, 28, 12, 28]


def test_what_is_visible_costs_the_broker_one_query(opened: Open) -> None:
    # Given a visible message; When it is looked up
    server, broker = opened(LookUps(named("ABC")))
    assert look_up(broker, Half(TOPIC, "ABC", "broker-a", "5 1001", GROUP), NOW) is Sighting.VISIBLE
    # Then the broker was not asked for its figures, which cost it a hundred times as much
    assert [request.code for request in server.requests if request.code in {12, 28}] == [12]


def test_a_look_up_of_a_broker_that_is_gone_cannot_tell(opened: Open) -> None:
    # Given a half of a broker that no route names; When it is looked up; Then nothing is proved
    _, broker = opened(healthy)
    assert look_up(broker, Half(TOPIC, "ABC", "broker-z", "5 1001", GROUP), NOW) is Sighting.CANNOT_TELL
