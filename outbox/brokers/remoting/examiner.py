"""The examining port over RocketMQ's remoting protocol; every request only reads.

Groups are looked for in the list of all (201): the question for one of them (352) makes the group where
``autoCreateSubscriptionGroup`` is on (``SubscriptionGroupManager.findSubscriptionGroupConfig``).
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from outbox.brokers.base import ORIGIN
from outbox.brokers.examiner import SETTINGS, Discarded, DiscardTopic, GroupFacts, OutOfReach, Runtime, TopicFacts
from outbox.brokers.ledger import CannotTell
from outbox.brokers.remoting.commands import Code, Sign
from outbox.brokers.remoting.connections import Away, Connections, Denied, NoAnswer, RemotingError
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.questions import config, pull_fields, runtime
from outbox.brokers.remoting.routes import Routes, split_addresses
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage, decode_messages, loads_lenient
from outbox.brokers.remoting.streams import Dial, dial

#: ``RequestCode``: PULL_MESSAGE, GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GET_PRODUCER_CONNECTION_LIST,
#: GET_TOPIC_CONFIG.
_PULL: Final = 11
_ALL_TOPICS: Final = 21
_ALL_GROUPS: Final = 201
_PRODUCERS: Final = 204
_TOPIC: Final = 351
#: ``TopicValidator.RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC``; it has one queue.
_DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
#: ``ResponseCode.PULL_NOT_FOUND``, ``PULL_RETRY_IMMEDIATELY``, ``PULL_OFFSET_MOVED``: nothing at this offset. The topic
#: is made when the first half is discarded.
_NOTHING: Final = frozenset((19, 20, 21, Code.TOPIC_NOT_EXIST))
#: Seconds for an answer: a broker under load takes its time, and is not to be called silent for that.
_PATIENCE: Final = 15.0
#: What a topic without the attribute counts as (``TopicMessageType``).
_NO_TYPE: Final = "NORMAL"


class RemotingExaminer:
    """See ``outbox.brokers.examiner.Examiner``; asks the masters."""

    def __init__(self, name_servers: str, *, dialler: Dial = dial, sign: Sign | None = None) -> None:
        """``name_servers``: ``host:9876``, several with ``;`` between them. Nothing is dialled before it is needed."""
        self._connections = Connections(dialler=dialler, sign=sign)
        self._routes = Routes(split_addresses(name_servers), self._connections)
        self._addresses: Mapping[str, str] = {}

    def masters(self) -> Collection[str]:
        """Of the whole cluster, as the name servers know it."""
        with _told("the cluster's brokers"):
            self._addresses = self._routes.brokers()
        return sorted(self._addresses)

    def settings(self, broker: str) -> Mapping[str, str]:
        """The others, passwords among them, are dropped on receipt."""
        with _told("settings"):
            return config(self._connections, self._addresses[broker], SETTINGS, _PATIENCE)

    def runtime(self, broker: str) -> Runtime:
        """For a second after its start a broker cannot say."""
        with _told("runtime figures"):
            table = runtime(self._connections, self._addresses[broker], _PATIENCE)
            used = float(table.get("commitLogDiskRatio", -1))
            return Runtime(version_of(table.get("brokerVersionDesc", "")), used if used >= 0 else None)

    def topic(self, broker: str, topic: str) -> TopicFacts | None:
        """4.9 does not answer for a single topic."""
        with _told(f"topic {topic}"):
            answer = self._call(broker, _TOPIC, {"topic": topic})
            if answer.code == Code.TOPIC_NOT_EXIST:
                return None
            if answer.code == Code.UNSUPPORTED:
                return _topic(self._all(broker, _ALL_TOPICS, "topicConfigTable").get(topic))
            return _topic(loads_lenient(self._success(broker, answer).body))

    def group(self, broker: str, group: str) -> GroupFacts | None:
        """From the list of all groups."""
        with _told(f"consumer group {group}"):
            found = self._all(broker, _ALL_GROUPS, "subscriptionGroupTable").get(group)
            return None if found is None else GroupFacts(bool(found["consumeEnable"]), int(found["retryMaxTimes"]))

    def listeners(self, broker: str, group: str) -> int:
        """An unknown group is answered with a system error that says so."""
        with _told(f"connections of producer group {group}"):
            answer = self._call(broker, _PRODUCERS, {"producerGroup": group})
            if answer.code == Code.SYSTEM_ERROR and "not exist" in answer.remark:
                return 0
            return len(loads_lenient(self._success(broker, answer).body)["connectionSet"])

    def discarded(self, broker: str, limit: int) -> DiscardTopic:
        """Pulled past all groups; what the broker has deleted for its age is not counted."""
        with _told(f"topic {_DISCARD_TOPIC}"):
            first = self._pull(broker, 0)
            if first.code == Code.TOPIC_NOT_EXIST:
                return DiscardTopic(0, [])
            beginning, end = int(first.ext["minOffset"]), int(first.ext["maxOffset"])
            latest = self._pulled(broker, max(beginning, end - limit), end)
            return DiscardTopic(max(0, end - beginning), [_discarded(it) for it in reversed(latest)])

    def close(self) -> None:
        """Ends the connections."""
        self._connections.close()

    def _pulled(self, broker: str, offset: int, end: int) -> Sequence[StoredMessage]:
        found: list[StoredMessage] = []
        while offset < end:
            answer = self._pull(broker, offset)
            if answer.code == Code.SUCCESS:
                found += decode_messages(answer.body)
            following = int(answer.ext["nextBeginOffset"])
            if following <= offset:
                break
            offset = following
        return found

    def _pull(self, broker: str, offset: int) -> Frame:
        answer = self._call(broker, _PULL, pull_fields(_DISCARD_TOPIC, 0, offset))
        return answer if answer.code in _NOTHING else self._success(broker, answer)

    def _all(self, broker: str, code: int, table: str) -> Mapping[str, Any]:
        answer = self._success(broker, self._call(broker, code, {}))
        found: Mapping[str, Any] = loads_lenient(answer.body)[table]
        return found

    def _call(self, broker: str, code: int, ext: Mapping[str, str]) -> Frame:
        return self._connections.call(self._addresses[broker], code, ext, timeout=_PATIENCE)

    def _success(self, broker: str, answer: Frame) -> Frame:
        if answer.code != Code.SUCCESS:
            raise Denied(self._addresses[broker], answer)
        return answer


def version_of(description: str) -> str:
    """``5.4.0`` of ``V5_4_0``; "": it is no such name."""
    found = re.search(r"V(\d+)_(\d+)_(\d+)", description)
    return ".".join(found.groups()) if found else ""


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns what the servers did not do into ``CannotTell``."""
    try:
        yield
    except (RemotingError, MalformedMessage, ValueError, KeyError, TypeError, AttributeError) as problem:
        said = " ".join(str(problem).split())
        kind = OutOfReach if isinstance(problem, Away | NoAnswer) else CannotTell
        raise kind(f"{what}: {said}") from problem


def _topic(found: Mapping[str, Any] | None) -> TopicFacts | None:
    if found is None:
        return None
    typed = "attributes" in found
    message_type = (found["attributes"] or {}).get("message.type", _NO_TYPE) if typed else None
    return TopicFacts(message_type, int(found["writeQueueNums"]), int(found["perm"]))


def _discarded(message: StoredMessage) -> Discarded:
    own = message.properties
    at = datetime.fromtimestamp(message.stored_at / 1000, UTC)
    return Discarded(own.get("UNIQ_KEY", ""), own.get("KEYS", ""), own.get("REAL_TOPIC", ""), own.get(ORIGIN, ""), at)
