"""Sends batches: one message ahead to each broker that has not answered yet, then the rest at once."""

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from outbox.brokers.base import Outage, Outgoing, Refused, Unknown
from outbox.brokers.native.calls import Calls
from outbox.brokers.native.producer import Producer
from outbox.brokers.native.vetting import Placed, Vetting
from outbox.clock import monotonic

#: The queue offset of a stored message, or what else is known of it.
Outcome = int | Refused | Outage | Unknown

_BUSY: Final = Outage("the first message to this broker is on its way, and has not come back in time")


class Dispatch:
    """Safe to use from several threads.

    While the client dials a broker, every other call to it fails at once, and the client does not say that nothing was
    sent. So one message goes ahead; where it is not stored, the others have never left: an outage.
    """

    def __init__(self, vetting: Vetting, calls: Calls, producer: Producer) -> None:
        self._vetting = vetting
        self._calls = calls
        self._producer = producer
        self._answering: set[str] = set()
        self._scouting = threading.Lock()

    def send(self, messages: Sequence[Outgoing], properties: Mapping[str, str], until: float) -> list[Outcome]:
        """Outcomes in order, by ``until``; ``properties``: beside those of the messages."""
        judged = self._vetting.judge(messages, until)
        outcomes: dict[int, Outcome] = {index: it for index, it in enumerate(judged) if not isinstance(it, Placed)}
        placed = {index: it for index, it in enumerate(judged) if isinstance(it, Placed)}
        for broker in dict.fromkeys(it.broker for it in placed.values()):
            if broker not in self._answering:
                share = {index: it for index, it in placed.items() if it.broker == broker}
                outcomes |= self._scout(broker, share, properties, until)
        rest = {index: it for index, it in placed.items() if index not in outcomes}
        outcomes |= self._run(rest, properties, until)
        return [outcomes[index] for index in range(len(messages))]

    def _scout(
        self, broker: str, share: Mapping[int, Placed], properties: Mapping[str, str], until: float
    ) -> dict[int, Outcome]:
        """The outcome of the first message; that of all, where the broker does not take it."""
        if not self._scouting.acquire(timeout=max(0.0, until - monotonic())):
            return dict.fromkeys(share, _BUSY)
        try:
            if broker in self._answering:
                return {}
            first = next(iter(share))
            ahead = self._run({first: share[first]}, properties, until)
        finally:
            self._scouting.release()
        if broker in self._answering:
            return ahead
        return dict.fromkeys(share, Outage(f"broker {broker} took no message: {_reason(ahead[first])}")) | ahead

    def _run(self, share: Mapping[int, Placed], properties: Mapping[str, str], until: float) -> dict[int, Outcome]:
        def call(placed: Placed) -> int | Unknown:
            """One blocking call; remembers whether the broker answers."""
            outcome = self._producer.send(placed.message, properties, placed.index)
            if isinstance(outcome, int):
                self._answering.add(placed.broker)
            else:
                self._answering.discard(placed.broker)
            return outcome

        return dict(zip(share, self._calls.run(call, list(share.values()), until), strict=True))


def _reason(outcome: Outcome) -> str:
    return "" if isinstance(outcome, int) else outcome.reason
