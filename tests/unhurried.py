"""Time for servers that are there: to a transport, one that says nothing for three seconds is away."""

from typing import Final

import pytest

from outbox.brokers.remoting import questions
from outbox.brokers.remoting.connections import Connections

#: Seconds that a machine does not stand still for.
PATIENCE: Final = 60.0
#: Where the transports' limits for an answer, a route, a connection and an index that lags behind stand.
_SECONDS: Final = (
    "grpc.acknowledgements._ANSWER",
    "grpc.broker._CLOSING",
    "grpc.polls._GRACE",
    "grpc.source._CLOSING",
    "native.positions._CALL",
    "native.returns._ANSWER",
    "remoting.acknowledgements.ANSWER",
    "remoting.connections.DIAL_TIMEOUT",
    "remoting.examiner._PATIENCE",
    "remoting.ledger._ANSWERS",
    "remoting.lookup.DIAL_TIMEOUT",
    "remoting.lookup._CATCH_UP",
    "remoting.polls.GRACE",
    "remoting.pop.GRACE",
    "remoting.pop._CLOSING",
    "remoting.routes._CALL",
    "remoting.routes._CALL_KNOWN",
)
_MILLISECONDS: Final = ("native.producer._ANSWER",)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has transports of this process wait for as long as a busy machine may take, where no server goes away.

    What they give up is legal, but not what such a test is about: an acknowledgement of which nothing was heard, a look
    that cannot tell, messages of an answer that came too late, which stay invisible for all of their time.
    """
    for name in _SECONDS:
        monkeypatch.setattr(f"outbox.brokers.{name}", PATIENCE)
    for name in _MILLISECONDS:
        monkeypatch.setattr(f"outbox.brokers.{name}", int(PATIENCE * 1000))
    for call in (Connections.call, Connections.ask):
        monkeypatch.setattr(call, "__kwdefaults__", {"timeout": PATIENCE})
    for question in (questions.config, questions.runtime):
        monkeypatch.setattr(question, "__defaults__", (PATIENCE,))
