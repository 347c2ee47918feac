"""Whether anybody is there: a heartbeat of nobody, which registers nothing and needs no right beside being known."""

import json
import logging
from collections.abc import Collection
from typing import Final

from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.routes import Routes
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds that one master has for its answer where there are others to ask.
_EACH: Final = 2.0


def nobody(group: str) -> bytes:
    """The body of a heartbeat that names neither producer nor consumer."""
    return json.dumps({"clientID": group, "producerDataSet": [], "consumerDataSet": []}).encode()


class Reach:
    """Asks masters in turn, the ones in use first; safe to use from several threads."""

    def __init__(self, connections: Connections, routes: Routes, group: str) -> None:
        self._connections = connections
        self._routes = routes
        self._body = nobody(group)

    def anybody(self, until: float) -> bool:
        """Whether a master answers before ``until``. One that does not know our keys counts as away."""
        asked: set[str] = set()
        for masters in (self._routes.masters, self._registered):
            for address in sorted(set(masters()) - asked):
                asked.add(address)
                if self.answers(address, until - monotonic()):
                    return True
        return False

    def _registered(self) -> Collection[str]:
        """The masters that the name servers know: a broker may have moved."""
        try:
            return self._routes.brokers().values()
        except RemotingError as problem:
            log.debug("no name server tells of a broker: %s", problem)
            return ()

    def answers(self, address: str, timeout: float = _EACH) -> bool:
        """Whether the server there answers within ``timeout`` seconds, or two."""
        if timeout <= 0:
            return False
        try:
            self._connections.ask(address, Request.HEARTBEAT, {}, self._body, timeout=min(_EACH, timeout))
        except RemotingError as problem:
            log.debug("%s is not reachable: %s", address, problem)
            return False
        return True
