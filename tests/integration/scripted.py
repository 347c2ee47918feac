"""A broker that answers as the test says; the store behind it is real."""

import itertools
from collections.abc import Callable, Collection, Sequence

from outbox.brokers.base import (
    Capabilities,
    Ended,
    Ending,
    Half,
    OnCheck,
    Outgoing,
    Prepared,
    Publication,
    Sent,
    Sought,
    Stored,
)
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation, Sighting


class ScriptedBroker:
    """Stores and confirms everything unless its ``on_…`` functions or ``sighting`` say otherwise."""

    group = "outbox-tests"

    def __init__(self, *, finds: bool = True) -> None:
        self.capabilities = Capabilities(confirms=finds, finds=finds, ends_by_handle=finds, check_scope="group")
        self._positions = itertools.count()
        self.prepared: list[Outgoing] = []
        self.endings: list[Ending] = []
        self.on_prepare: Callable[[Outgoing], Prepared] = lambda message: Stored(self.half(message))
        self.on_send: Callable[[Outgoing], Publication] = lambda message: Sent(message.unique_id)
        self.on_resolve: Callable[[Ending], Ended] = lambda _: Ended(Confirmation.CONFIRMED)
        self.sighting = Sighting.ABSENT
        self.is_there: Callable[[], bool] = lambda: True
        self.before_prepare: Callable[[], object] = lambda: None
        self.after_prepare: Callable[[], object] = lambda: None

    def half(self, message: Outgoing) -> Half:
        """The half that a broker would have stored."""
        return Half(message.topic, message.unique_id, "broker-a", str(next(self._positions)), self.group)

    def verdicts(self, verdict: Verdict) -> list[str]:
        """The ids of the halves that were ended so."""
        return [ending.half.half_id for ending in self.endings if ending.verdict is verdict]

    def prepare(self, messages: Sequence[Outgoing], timeout: float) -> list[Prepared]:
        self.before_prepare()
        self.prepared += messages
        outcomes = [self.on_prepare(message) for message in messages]
        self.after_prepare()
        return outcomes

    def send(self, messages: Sequence[Outgoing], timeout: float) -> list[Publication]:
        self.prepared += messages
        return [self.on_send(message) for message in messages]

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        self.endings += endings
        return [self.on_resolve(ending) for ending in endings]

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        return [self.sighting] * len(sought)

    def listen(self, topics: Collection[str], on_check: OnCheck, groups: Collection[str] = ()) -> None:
        raise NotImplementedError

    def reachable(self, timeout: float) -> bool:
        return self.is_there()

    def checks_ready(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""
