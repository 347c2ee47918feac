"""The listener: stays registered for every group and topic that open rows name, and says that it is alive."""

import logging
import os
import socket
import threading

from checkback.checker import Checker
from outbox.brokers.base import Broker
from outbox.identity import fresh_token
from outbox.store.identity import Identity
from outbox.store.operations import Operations

_log = logging.getLogger("checkback")


class Listener:
    """Runs in a thread of its own until ``stop``; a database that is away is tried again, checks get UNKNOWN."""

    def __init__(
        self, broker: Broker, checker: Checker, identity: Identity, operations: Operations, *, every: float
    ) -> None:
        self._broker = broker
        self._checker = checker
        self._identity = identity
        self._operations = operations
        self._every = every
        self._name = f"checkback/{socket.gethostname()[:100]}/{os.getpid()}/{fresh_token()}"
        self._registered: tuple[frozenset[str], frozenset[str]] | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Registers at once, then again whenever the groups change; a heartbeat every ``every`` seconds."""
        while not self._stopping.is_set():
            self._turn()
            self._stopping.wait(self._every)

    def stop(self) -> None:
        """``run`` returns soon."""
        self._stopping.set()

    def _turn(self) -> None:
        try:
            topics, groups = self._operations.open_topics_and_groups()
            self._register(topics, groups | {self._broker.group})
            if self._broker.checks_ready():
                self._identity.beat(self._name)
        except Exception as error:  # noqa: BLE001 -- the loop must outlive whatever happens in one turn
            _log.warning("check-back turn failed, tried again in %.0f s: %s", self._every, error)
            self._register_blind()

    def _register(self, topics: frozenset[str], groups: frozenset[str]) -> None:
        if (topics, groups) != self._registered:
            self._broker.listen(topics, self._checker.on_check, groups)
            self._registered = (topics, groups)
            _log.info("listening groups=%s", ",".join(sorted(groups)))

    def _register_blind(self) -> None:
        """Without the database we still listen, so that checks are answered UNKNOWN rather than used up in silence."""
        if self._registered is None:
            self._broker.listen((), self._checker.on_check, (self._broker.group,))
