"""The listener: stays registered for every producer group that open rows name, and says that it is alive."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from sqlalchemy.exc import SQLAlchemyError

from checkback.checker import Checker
from outbox.brokers.base import Answer, Broker, Check
from outbox.health.vitals import Vitals
from outbox.identity import fresh_token
from outbox.shown import cause
from outbox.store.heartbeats import Heartbeats

_LOG = logging.getLogger("checkback")
#: Seconds to the next turn while the registration is under way.
_SOON = 0.5
#: Seconds for a turn, or for the answer to one check, that are too many.
_PATIENCE = 120.0
#: What a check-back needs, by the name that probes are told: to be registered, and heard of by the database.
CHECKS = "checks"


class Listener:
    """Runs in a thread of its own until ``stop``; a database that is away is tried again, checks get UNKNOWN."""

    def __init__(
        self,
        broker: Broker,
        checker: Checker,
        heartbeats: Heartbeats,
        *,
        groups: Callable[[], AbstractSet[str]],
        topics: Callable[[], AbstractSet[str]],
        every: float,
        gap: float,
        vitals: Vitals | None = None,
        log: logging.Logger = _LOG,
    ) -> None:
        """``groups``: under which the broker may still ask; ``topics``: those that rows name."""
        vitals = vitals or Vitals()
        vitals.expect(CHECKS)
        self._vitals = vitals
        self._pulse = vitals.pulse("checkback", every + _PATIENCE)
        self._answering = vitals.pulse("answers", _PATIENCE, beats=False)
        self._log = log
        self._broker = broker
        self._checker = checker
        self._heartbeats = heartbeats
        self._open_groups = groups
        self._named_topics = topics
        self._every = every
        self._gap = gap
        self._name = f"checkback/{socket.gethostname()[:100]}/{os.getpid()}/{fresh_token()}"
        self._groups: frozenset[str] = frozenset()
        self._topics: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        #: Why the last turn failed; "": it did not.
        self._failure = ""

    def run(self) -> None:
        """Registers at once, then whenever there are new groups or topics; a heartbeat every ``every`` seconds."""
        while not self._stopping.is_set():
            self._pulse.beat()
            heard = self._turn()
            self._stopping.wait(self._every if heard else min(self._every, _SOON))
        self._say_good_bye()

    def stop(self) -> None:
        """``run`` returns soon."""
        self._stopping.set()

    def _turn(self) -> bool:
        """Whether the brokers know us and the database has heard so."""
        try:
            # Before the first question to the database: checks are answered UNKNOWN rather than used up in silence.
            self._listen_for({self._broker.group})
            self._listen_for(self._open_groups(), self._topics_to_name())
            if not self._broker.checks_ready():
                self._vitals.lacks(CHECKS, "not registered at every broker that may ask")
                return False
            self._heartbeats.beat(self._name, self._gap)
        except Exception as error:  # noqa: BLE001 -- the loop must outlive whatever happens in one turn
            why = cause(error)
            self._note(why)
            self._vitals.lacks(CHECKS, why)
            return False
        self._note("")
        self._vitals.has(CHECKS)
        return True

    def _note(self, failure: str) -> None:
        """Twice a second the same would bury the log of an outage: what is told is the change."""
        if failure and failure != self._failure:
            self._log.warning("check-back turn failed, it is tried again: %s", failure)
        elif self._failure and not failure:
            self._log.warning("check-back turns succeed again")
        self._failure = failure

    def _topics_to_name(self) -> AbstractSet[str]:
        """None, where a group is asked about whatever topics its halves have."""
        return self._named_topics() if self._broker.capabilities.check_scope == "topic" else frozenset()

    def _listen_for(self, groups: AbstractSet[str], topics: AbstractSet[str] = frozenset()) -> None:
        """Both are added, never dropped: a broker may ask about a half long after its row was settled."""
        if groups <= self._groups and topics <= self._topics:
            return
        groups, topics = self._groups | groups, self._topics | topics
        self._broker.listen(topics, self._on_check, groups)
        self._groups, self._topics = groups, topics  # no sooner: what was not registered is tried again
        about = f" topics={','.join(sorted(self._topics))}" if self._topics else ""
        self._log.info("listening groups=%s%s", ",".join(sorted(self._groups)), about)

    def _on_check(self, check: Check, answer: Answer) -> None:
        with self._answering.busy():
            self._checker.on_check(check, answer)

    def _say_good_bye(self) -> None:
        try:
            self._heartbeats.leave(self._name)
        except SQLAlchemyError as error:
            self._log.info("heartbeat left behind: %s", cause(error))
