"""The watch: asks from time to time whether database and broker are there, so that an idle relay knows as well."""

import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from outbox.brokers.base import Broker
from outbox.health.pulse import Pulse
from outbox.health.vitals import Vitals
from outbox.shown import cause
from relay.breaker import Breaker
from relay.reporting import BROKER, DATABASE

#: Seconds between two looks: while all is well, and while something is away.
CALM: Final = 5.0
SOON: Final = 1.0
#: Seconds for the broker's answer.
PING: Final = 2.0


class Watch:
    """A loop of its own, so that a broker that says nothing holds nobody up."""

    def __init__(
        self, why_not: Callable[[], str], broker: Broker, breaker: Breaker, vitals: Vitals, *, calm: float = CALM
    ) -> None:
        """``why_not``: why the database takes no writes; "": it does."""
        self._why_not = why_not
        self._broker = broker
        self._breaker = breaker
        self._vitals = vitals
        self._calm = calm
        self._stopping = threading.Event()

    def run(self, pulse: Pulse) -> None:
        """Looks until ``stop``."""
        rest = 0.0
        while not self._stopping.wait(rest):
            pulse.beat()
            there = [self._look(DATABASE, self._database_trouble()), self._look(BROKER, self._broker_trouble())]
            rest = self._calm if all(there) else min(SOON, self._calm)

    def stop(self) -> None:
        """``run`` returns soon."""
        self._stopping.set()

    def _look(self, name: str, trouble: str) -> bool:
        if trouble:
            self._vitals.lacks(name, trouble)
        else:
            self._vitals.has(name)
        return not trouble

    def _database_trouble(self) -> str:
        try:
            return self._why_not()
        except SQLAlchemyError as error:
            return cause(error)

    def _broker_trouble(self) -> str:
        """A broker that answers and took no message lately is away as well, until it takes one or has been asked to."""
        if not self._broker.reachable(PING):
            return "no broker answers"
        if self._breaker.closed() or self._breaker.half_open():
            return ""
        return "the broker takes no messages"
