"""Looks a half's unique id up among the visible messages of the broker that holds the half."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from outbox.brokers.base import Half
from outbox.brokers.remoting.admin import config, runtime
from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import Connections, Denied, RemotingError
from outbox.brokers.remoting.routes import Routes
from outbox.brokers.remoting.stored import MalformedMessage, decode_messages
from outbox.brokers.remoting.transactions import parse_handle
from outbox.clock import monotonic
from outbox.verdict import Sighting

log = logging.getLogger(__name__)

#: Seconds for which the broker's settings are believed.
_CONFIG_FRESH: Final = 60.0
#: Seconds that a look-up waits for the index to catch up, and between two looks at how far it is.
_CATCH_UP: Final = 2.0
_POLL: Final = 0.02
#: What the broker returns at most for one id (``defaultQueryMaxNum``): as many may hide the one that is asked for.
_LIMIT: Final = 32
_BEFORE: Final = timedelta(days=1)
#: A half may be committed long after the decision; no store keeps messages for a year beyond that.
_AFTER: Final = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class _Store:
    """The figures of ``MessageStore`` that tell whether an absence proves anything."""

    #: Milliseconds; of the oldest message that is left; -1: the broker does not say (4.9, in its first megabytes).
    earliest: int
    #: Where the commit log ends.
    written: int
    #: Up to where consume queues and the index have been built.
    dispatched: int


def _store(figures: Mapping[str, str]) -> _Store:
    written = int(figures["commitLogMaxOffset"])
    return _Store(int(figures["earliestMessageTimeStamp"]), written, written - int(figures["dispatchBehindBytes"]))


class LookUp:
    """Answers whether a half's message is visible; safe to use from several threads."""

    def __init__(self, connections: Connections, routes: Routes) -> None:
        self._connections = connections
        self._routes = routes
        self._indexed: dict[str, tuple[bool, float]] = {}

    def find(self, half: Half, since: datetime) -> Sighting:
        """``Broker.find``: whatever stands in the way of a proof makes it CANNOT_TELL."""
        try:
            address = self._routes.master(half.topic, half.broker)
            before = _store(runtime(self._connections, address))
            if self._query(address, half, since):
                return Sighting.VISIBLE
            return self._prove_absence(address, half, since, before)
        except (RemotingError, MalformedMessage, ValueError, KeyError, TypeError) as problem:
            log.warning("look-up of %s at broker %s cannot tell: %r", half.half_id, half.broker, problem)
            return Sighting.CANNOT_TELL

    def _prove_absence(self, address: str, half: Half, since: datetime, before: _Store) -> Sighting:
        """ABSENT needs an index that is on, a store older than the decision, and all of ``before`` in the index."""
        earliest = before.earliest if before.earliest >= 0 else self._stored_at(address, half)
        if not self._has_index(address) or earliest > since.timestamp() * 1000:
            return Sighting.CANNOT_TELL
        if before.dispatched >= before.written:
            return Sighting.ABSENT
        deadline = monotonic() + _CATCH_UP
        while monotonic() < deadline:
            if _store(runtime(self._connections, address)).dispatched >= before.written:
                return Sighting.VISIBLE if self._query(address, half, since) else Sighting.ABSENT
            time.sleep(_POLL)
        return Sighting.CANNOT_TELL

    def _has_index(self, address: str) -> bool:
        """Whether this is a master that keeps the message index."""
        known = self._indexed.get(address)
        if known is None or monotonic() - known[1] > _CONFIG_FRESH:
            settings = config(self._connections, address, ("messageIndexEnable", "brokerRole"))
            master = settings.get("brokerRole", "SLAVE") != "SLAVE"
            known = (master and settings.get("messageIndexEnable") == "true", monotonic())
            self._indexed[address] = known
        return known[0]

    def _stored_at(self, address: str, half: Half) -> int:
        """When the half was stored (milliseconds), read where it lies: whatever is younger is still there as well."""
        offsets = parse_handle(half.handle)
        answer = self._connections.ask(address, Request.VIEW_MESSAGE, {"offset": str(offsets[1] if offsets else -1)})
        (message,) = decode_messages(answer.body)
        if message.properties.get("UNIQ_KEY") != half.half_id:
            raise MalformedMessage(f"another message lies at the position of half {half.half_id}")
        return message.stored_at

    def _query(self, address: str, half: Half, since: datetime) -> bool:
        """Whether a message with exactly this id is visible; ``RemotingError`` where the answer proves nothing."""
        ext = {
            "topic": half.topic,
            "key": half.half_id,
            "maxNum": str(_LIMIT),
            "beginTimestamp": str(int((since - _BEFORE).timestamp() * 1000)),
            "endTimestamp": str(int((since + _AFTER).timestamp() * 1000)),
            "_UNIQUE_KEY_QUERY": "true",
        }
        answer = self._connections.call(address, Request.QUERY_MESSAGE, ext)
        if answer.code == Code.QUERY_NOT_FOUND:
            return False
        if answer.code != Code.SUCCESS:
            raise Denied(address, answer)
        found = list(decode_messages(answer.body))
        if any(seen.properties.get("UNIQ_KEY") == half.half_id and seen.topic == half.topic for seen in found):
            return True
        if len(found) >= _LIMIT:
            raise RemotingError(f"{address}: {len(found)} messages share the hash of {half.half_id}, none is it")
        return False
