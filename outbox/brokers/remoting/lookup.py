"""Looks halves' unique ids up among the visible messages of the brokers that hold the halves."""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from outbox.brokers.base import Half, Sought
from outbox.brokers.remoting.commands import Code, Request, refusal
from outbox.brokers.remoting.connections import DIAL_TIMEOUT, Connections, Denied, NoAnswer, RemotingError
from outbox.brokers.remoting.figures import Figures, StoreFigures
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.pipeline import exchange
from outbox.brokers.remoting.questions import config
from outbox.brokers.remoting.routes import Routes
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage, decode_messages
from outbox.brokers.remoting.transactions import parse_handle
from outbox.clock import monotonic
from outbox.verdict import Sighting

log = logging.getLogger(__name__)

#: ``BrokerRole`` of what copies a master, and may be behind it.
_SLAVE: Final = "SLAVE"
#: Seconds that a look-up waits for the index to catch up, and between two looks at how far it is.
_CATCH_UP: Final = 2.0
_POLL: Final = 0.02
#: What the broker returns at most for one id (``defaultQueryMaxNum``): as many may hide the one that is asked for.
_LIMIT: Final = 32
#: How the broker says that nothing lies at an offset.
_NO_MESSAGE: Final = "can not find message"
_BEFORE: Final = timedelta(days=1)
#: A half may be committed long after the decision; no store keeps messages for a year beyond that.
_AFTER: Final = timedelta(days=366)
#: Where halves lie (``TopicValidator.RMQ_SYS_TRANS_HALF_TOPIC``), and how exactly the index knows when (milliseconds).
_HALVES: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_INDEX_GRAIN: Final = 2000


class LookUp:
    """Answers whether halves' messages are visible; safe to use from several threads."""

    def __init__(self, connections: Connections, routes: Routes) -> None:
        self._connections = connections
        self._routes = routes
        self._figures = Figures(connections)

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        """``Broker.find``: whatever stands in the way of a proof makes it CANNOT_TELL."""
        sightings: dict[Sought, Sighting] = {}
        for broker in {it.half.broker for it in sought}:
            share = [it for it in sought if it.half.broker == broker]
            try:
                sightings |= self._find_share(share, until)
            except (RemotingError, MalformedMessage, ValueError, KeyError, TypeError) as problem:
                said = problem if isinstance(problem, RemotingError) else repr(problem)
                log.warning("look-up of %d halves at broker %s cannot tell: %s", len(share), broker, said)
        return [sightings.get(it, Sighting.CANNOT_TELL) for it in sought]

    def _find_share(self, share: Sequence[Sought], until: float) -> dict[Sought, Sighting]:
        """The halves of one broker. What is visible proves itself; the store's figures, which cost the broker a hundred
        times as much as a query, are asked for what is not."""
        address = self._routes.master(share[0].half.topic, share[0].half.broker, until)
        sightings = self._query(address, share, until)
        missed = [it for it in share if sightings[it] is Sighting.ABSENT]
        return sightings | self._find_missed(address, missed, until) if missed else sightings

    def _find_missed(self, address: str, missed: Sequence[Sought], until: float) -> dict[Sought, Sighting]:
        """What the index did not have at first."""
        if not self._has_index(address, until):
            return dict.fromkeys(missed, Sighting.CANNOT_TELL)
        sightings = self._query_whole(address, missed, until)
        absent = [it for it in missed if sightings[it] is Sighting.ABSENT]
        if not absent:
            return sightings
        # Read after the query: files that were deleted meanwhile may have held the message.
        after = self._figures.now(address, _left(until))
        doubtful = [it for it in absent if not after.proves(it)]
        places = self._ask_each(address, Request.VIEW_MESSAGE, [_place_of(it.half) for it in doubtful], until)
        proved = zip(doubtful, places, strict=True)
        return sightings | {it: self._proved(address, it, place, after, until) for it, place in proved}

    def _query_whole(self, address: str, missed: Sequence[Sought], until: float) -> dict[Sought, Sighting]:
        """Asks again once the index has caught up with everything that was stored before the call."""
        deadline = min(until, monotonic() + _CATCH_UP)
        figures = before = self._figures.now(address, _left(until))
        while figures.dispatched < before.written:
            time.sleep(_POLL)
            if monotonic() >= deadline:
                return dict.fromkeys(missed, Sighting.CANNOT_TELL)
            figures = self._figures.now(address, _left(until))
        return self._query(address, missed, until)

    def _proved(self, address: str, it: Sought, place: Frame | None, store: StoreFigures, until: float) -> Sighting:
        """ABSENT if the store goes back to the decision, by its oldest message or because the half, which is older,
        still lies in its place, and the index goes back to the half; EXPIRED if the store does not.

        The half itself settles it where clocks differ, and on 4.9, whose young stores do not say how old they are.
        """
        try:
            half = _in_place(address, it.half, place)
            if half is None:
                return Sighting.ABSENT if store.goes_back_to(it) else Sighting.EXPIRED
            if half.stored_at > store.booted or self._is_indexed(address, half, until):
                return Sighting.ABSENT
        except (RemotingError, MalformedMessage, ValueError) as problem:
            log.warning("look-up of half %s cannot tell how old store and index are: %s", it.half.half_id, problem)
            return Sighting.CANNOT_TELL
        log.warning(
            "look-up of half %s cannot tell: a crash of the broker cost it the index of that time", it.half.half_id
        )
        return Sighting.CANNOT_TELL

    def _is_indexed(self, address: str, half: StoredMessage, until: float) -> bool:
        """Whether the index knows the half itself, and so all that was stored after it.

        A broker that died throws the index file in use away and builds it again only from the commit-log file on that
        its checkpoint names (``IndexService.load``, ``CommitLog.recoverAbnormally``).
        """
        where = {
            "topic": _HALVES,
            "key": half.properties["UNIQ_KEY"],
            "maxNum": str(_LIMIT),
            "beginTimestamp": str(half.stored_at - _INDEX_GRAIN),
            "endTimestamp": str(half.stored_at + _INDEX_GRAIN),
            "_UNIQUE_KEY_QUERY": "true",
        }
        answer = self._connections.call(address, Request.QUERY_MESSAGE, where, timeout=_left(until))
        if answer.code == Code.QUERY_NOT_FOUND:
            return False
        if answer.code != Code.SUCCESS:
            raise Denied(address, answer)
        return any(seen.commit_log_offset == half.commit_log_offset for seen in decode_messages(answer.body))

    def _has_index(self, address: str, until: float) -> bool:
        """Whether this is a master that keeps the message index; asked each time: a broker may change its role."""
        settings = config(self._connections, address, ("messageIndexEnable", "brokerRole"), _left(until))
        return settings.get("brokerRole", _SLAVE) != _SLAVE and settings.get("messageIndexEnable") == "true"

    def _query(self, address: str, share: Sequence[Sought], until: float) -> dict[Sought, Sighting]:
        """Asks for each id, pipelined; ABSENT here means no more than that the index has no such entry now."""
        answers = self._ask_each(address, Request.QUERY_MESSAGE, [_wanted(it) for it in share], until)
        return {it: _seen(it.half, answer) for it, answer in zip(share, answers, strict=True)}

    def _ask_each(
        self, address: str, code: Request, questions: Sequence[Mapping[str, str]], until: float
    ) -> Sequence[Frame | None]:
        """The answers to several questions of one kind, pipelined."""

        def encode(first: int) -> list[bytes]:
            """One request for each question."""
            request = self._connections.request
            return [request(code, opaque, question) for opaque, question in enumerate(questions, first)]

        return exchange(self._connections, address, len(questions), encode, until).frames if questions else []


def _place_of(half: Half) -> dict[str, str]:
    """Where a half was stored, as VIEW_MESSAGE asks for it."""
    offsets = parse_handle(half.handle)
    return {"offset": str(offsets[1] if offsets else -1)}


def _in_place(address: str, half: Half, answer: Frame | None) -> StoredMessage | None:
    """The half, if the commit log still holds it where it was stored (``QueryMessageProcessor``, broker)."""
    if answer is None:
        raise NoAnswer(f"{address}: no answer about the place of the half")
    if answer.code == Code.SYSTEM_ERROR and _NO_MESSAGE in answer.remark:
        return None
    if answer.code != Code.SUCCESS:
        raise Denied(address, answer)
    (message,) = decode_messages(answer.body)
    return message if message.properties.get("UNIQ_KEY") == half.half_id else None


def _left(until: float) -> float:
    """Seconds that one question may take."""
    return max(0.0, min(DIAL_TIMEOUT, until - monotonic()))


def _wanted(it: Sought) -> dict[str, str]:
    return {
        "topic": it.half.topic,
        "key": it.half.half_id,
        "maxNum": str(_LIMIT),
        "beginTimestamp": str(int((it.since - _BEFORE).timestamp() * 1000)),
        "endTimestamp": str(int((it.since + _AFTER).timestamp() * 1000)),
        "_UNIQUE_KEY_QUERY": "true",
    }


def _seen(half: Half, answer: Frame | None) -> Sighting:
    """The index finds by hash, so the id is compared again; a full answer of strangers may hide the one."""
    if answer is None:
        return Sighting.CANNOT_TELL
    if answer.code == Code.QUERY_NOT_FOUND:
        return Sighting.ABSENT
    if answer.code != Code.SUCCESS:
        log.warning("look-up of half %s: %s", half.half_id, refusal(answer.code, answer.remark))
        return Sighting.CANNOT_TELL
    found = list(decode_messages(answer.body))
    if any(seen.properties.get("UNIQ_KEY") == half.half_id and seen.topic == half.topic for seen in found):
        return Sighting.VISIBLE
    return Sighting.ABSENT if len(found) < _LIMIT else Sighting.CANNOT_TELL
