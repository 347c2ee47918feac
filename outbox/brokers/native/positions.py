"""Where halves lie: the client tells the queue offset only, the broker's queue of halves tells the rest."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import Connections, Denied, RemotingError
from outbox.brokers.remoting.questions import pull_fields
from outbox.brokers.remoting.routes import NoRoute, Routes
from outbox.brokers.remoting.stored import MalformedMessage, decode_messages
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: The broker's one queue of halves (``TopicValidator.RMQ_SYS_TRANS_HALF_TOPIC``).
_HALVES: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_QUEUE: Final = 0
#: Seconds between two looks, at first and at most: the queue is built a moment after the half is stored.
_POLL: Final = 0.002
_POLL_MOST: Final = 0.1
_CALL: Final = 3.0
#: PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED (``ResponseCode``).
_NOTHING_YET: Final = frozenset((19, 20, 21))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a half lies: the broker's name, and the handle as ``outbox.brokers.remoting`` reads it."""

    broker: str
    handle: str


class Positions:
    """Finds halves by their queue offsets; safe to use from several threads."""

    def __init__(self, connections: Connections, routes: Routes) -> None:
        self._connections = connections
        self._routes = routes

    def find(self, topic: str, halves: Mapping[str, int], until: float) -> dict[str, Place]:
        """The place of each half by its unique id; ``halves``: unique id and queue offset.

        Two brokers may hold halves at the same offset: the unique id tells. Halves that are not seen by ``until`` are
        left out.
        """
        found: dict[str, Place] = {}
        pause = _POLL
        while len(found) < len(halves) and monotonic() < until:
            for broker, address in self._masters(topic, until).items():
                missing = {half_id: offset for half_id, offset in halves.items() if half_id not in found}
                found |= {
                    half_id: Place(broker, handle) for half_id, handle in self._at(address, missing, until).items()
                }
            if len(found) < len(halves):
                time.sleep(pause)
                pause = min(_POLL_MOST, 2 * pause)
        return found

    def _masters(self, topic: str, until: float) -> Mapping[str, str]:
        try:
            return self._routes.route(topic, until).masters
        except (RemotingError, NoRoute):
            return {}

    def _at(self, address: str, halves: Mapping[str, int], until: float) -> dict[str, str]:
        """Handles of those halves that this broker holds; one answer shows what lies behind the offset as well."""
        found: dict[str, str] = {}
        covered = -1
        for offset in sorted(set(halves.values())):
            if offset <= covered:
                continue
            try:
                seen = self._pull(address, offset, until)
            except (RemotingError, MalformedMessage) as problem:
                log.warning("%s: where %d halves lie cannot be read: %s", address, len(halves) - len(found), problem)
                break
            for half_id, queue_offset, handle in seen:
                covered = queue_offset
                if halves.get(half_id) == queue_offset:
                    found[half_id] = handle
        return found

    def _pull(self, address: str, offset: int, until: float) -> list[tuple[str, int, str]]:
        """Unique id, queue offset and handle of the halves that lie from ``offset`` on."""
        fields = pull_fields(_HALVES, _QUEUE, offset)
        timeout = max(0.0, min(_CALL, until - monotonic()))
        answer = self._connections.call(address, Request.PULL_MESSAGE, fields, timeout=timeout)
        if answer.code in _NOTHING_YET:
            return []
        if answer.code != Code.SUCCESS:
            raise Denied(address, answer)
        return [
            (half.properties["UNIQ_KEY"], half.queue_offset, f"{half.queue_offset} {half.commit_log_offset}")
            for half in decode_messages(answer.body)
            if "UNIQ_KEY" in half.properties
        ]
