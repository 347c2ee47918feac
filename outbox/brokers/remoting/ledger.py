"""The auditing port over RocketMQ's remoting protocol: the message index for copies, the queues for a whole topic."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from outbox.brokers.ledger import CannotTell, Copies, Seen, Wanted
from outbox.brokers.remoting.commands import Code, Request, Sign
from outbox.brokers.remoting.connections import Connections, Denied, NoAnswer, RemotingError
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.pipeline import exchange
from outbox.brokers.remoting.questions import config, pull_fields, runtime
from outbox.brokers.remoting.routes import NoRoute, Routes, split_addresses
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage, decode_messages
from outbox.brokers.remoting.streams import Dial, dial
from outbox.clock import monotonic

#: Questions on their way at once: their answers bring bodies along, of up to 4 MiB each.
_PIPELINED: Final = 16
#: Seconds for the answers to them.
_ANSWERS: Final = 30.0
#: What the broker returns at most for one unique id (``defaultQueryMaxNum``) and one key (``maxMsgsNumBatch``).
_MOST_OF_ID: Final = 32
_MOST_OF_KEY: Final = 64
_MARGIN: Final = timedelta(days=1)
#: A row may be published long after it was added; no store keeps messages for a year beyond that.
_AFTER: Final = timedelta(days=366)
#: ``RequestCode.SEARCH_OFFSET_BY_TIMESTAMP``.
_SEARCH_OFFSET: Final = 29
#: ``ResponseCode.PULL_NOT_FOUND``, ``PULL_RETRY_IMMEDIATELY``, ``PULL_OFFSET_MOVED``.
_PULL_NOT_FOUND: Final = 19
_PULL_AGAIN: Final = (20, 21)


class RemotingLedger:
    """See ``outbox.brokers.ledger.Ledger``; asks the masters of a topic."""

    def __init__(self, name_servers: str, *, dialler: Dial = dial, sign: Sign | None = None) -> None:
        """``name_servers``: ``host:9876``, several with ``;`` between them. Nothing is dialled before it is needed."""
        self._connections = Connections(dialler=dialler, sign=sign)
        self._routes = Routes(split_addresses(name_servers), self._connections)
        self._indexed: set[str] = set()

    def knows(self, topic: str) -> bool:
        """Whether the name servers have a route."""
        with _told():
            return bool(self._masters(topic))

    def exists(self, topic: str) -> bool:
        """The same: only servers make topics."""
        return self.knows(topic)

    def oldest(self, topic: str) -> datetime | None:
        """The oldest message of the master whose store goes back least; 4.9 does not say for a young store."""
        with _told():
            addresses = self._masters(topic).values()
            earliest = [int(runtime(self._connections, it)["earliestMessageTimeStamp"]) for it in addresses]
        return _moment(max(earliest)) if earliest and min(earliest) >= 0 else None

    def copies(self, wanted: Sequence[Wanted]) -> list[Copies]:
        """By unique id and by key, from the index of every master; a key with blanks was indexed in pieces."""
        with _told():
            chunks = [wanted[start : start + _PIPELINED] for start in range(0, len(wanted), _PIPELINED)]
            return [copies for chunk in chunks for copies in self._copies(chunk)]

    def messages(self, topic: str, since: datetime, until: datetime) -> Iterator[Seen]:
        """Queue by queue, in pieces of at most 32."""
        with _told():
            try:
                route = self._routes.route(topic)
            except NoRoute:
                return
            for broker, queues in sorted(route.readable.items()):
                for queue in range(queues):
                    yield from self._of_queue(broker, route.masters[broker], _Queue(topic, queue), since, until)

    def close(self) -> None:
        """Ends the connections."""
        self._connections.close()

    def _masters(self, topic: str) -> Mapping[str, str]:
        try:
            return self._routes.route(topic).masters
        except NoRoute:
            return {}

    def _copies(self, chunk: Sequence[Wanted]) -> list[Copies]:
        """Each question goes to every master of its topic."""
        questions = [(index, question) for index, one in enumerate(chunk) for question in _questions(one)]
        found: list[dict[str, Seen]] = [{} for _ in chunk]
        complete = [_can_be_asked(one) for one in chunk]
        asked: dict[tuple[str, str], list[tuple[int, dict[str, str]]]] = {}
        for index, question in questions:
            for master in self._masters(chunk[index].topic).items():
                asked.setdefault(master, []).append((index, question))
        for (broker, address), share in asked.items():
            answers = self._ask(address, [question for _, question in share])
            for (index, question), answer in zip(share, answers, strict=True):
                messages = _messages(address, answer)
                found[index] |= {it.place: it for it in (_seen(broker, message) for message in messages)}
                complete[index] &= len(messages) < int(question["maxNum"])
        return [Copies(list(it.values()), whole) for it, whole in zip(found, complete, strict=True)]

    def _ask(self, address: str, questions: Sequence[Mapping[str, str]]) -> Sequence[Frame | None]:
        self._expect_index(address)

        def encode(first: int) -> list[bytes]:
            """One request for each question."""
            request = self._connections.request
            return [request(Request.QUERY_MESSAGE, opaque, it) for opaque, it in enumerate(questions, first)]

        return exchange(self._connections, address, len(questions), encode, monotonic() + _ANSWERS).frames

    def _expect_index(self, address: str) -> None:
        """``CannotTell`` for a broker without the message index: it answers every query with nothing."""
        if address in self._indexed:
            return
        if config(self._connections, address, ("messageIndexEnable",)).get("messageIndexEnable") != "true":
            raise CannotTell(f"broker {address}: keeps no message index; set messageIndexEnable=true in its settings")
        self._indexed.add(address)

    def _of_queue(self, broker: str, address: str, at: "_Queue", since: datetime, until: datetime) -> Iterator[Seen]:
        """From the first message of the range to the first one behind it: a queue is in the order of its times."""
        start = {"topic": at.topic, "queueId": str(at.number), "timestamp": str(_milliseconds(since))}
        offset = int(self._connections.ask(address, _SEARCH_OFFSET, start).ext["offset"])
        for message in self._pulled(address, at, offset):
            if message.stored_at >= _milliseconds(until):
                return
            if message.stored_at >= _milliseconds(since):
                yield _seen(broker, message)

    def _pulled(self, address: str, at: "_Queue", offset: int) -> Iterator[StoredMessage]:
        """What lies in the queue from an offset on."""
        while True:
            answer = self._connections.call(address, Request.PULL_MESSAGE, pull_fields(at.topic, at.number, offset))
            if answer.code == Code.SUCCESS:
                yield from decode_messages(answer.body)
            elif answer.code == _PULL_NOT_FOUND:
                return
            elif answer.code not in _PULL_AGAIN:
                raise Denied(address, answer)
            following = int(answer.ext["nextBeginOffset"])
            if following <= offset:
                return
            offset = following


@dataclass(frozen=True, slots=True)
class _Queue:
    """One queue of a topic."""

    topic: str
    number: int


@contextmanager
def _told() -> Iterator[None]:
    """Turns what the servers did not do into ``CannotTell``."""
    try:
        yield
    except (RemotingError, MalformedMessage, KeyError) as problem:
        raise CannotTell(f"{problem}; bring the broker back and audit again") from problem


def _can_be_asked(one: Wanted) -> bool:
    """Whether the index, which splits KEYS at blanks, finds every message of the key."""
    return len(one.key.split()) == 1 and one.key == one.key.strip()


def _questions(one: Wanted) -> list[dict[str, str]]:
    where = {
        "topic": one.topic,
        "beginTimestamp": str(_milliseconds(one.since - _MARGIN)),
        "endTimestamp": str(_milliseconds(one.since + _AFTER)),
    }
    by_key = {"key": one.key, "maxNum": str(_MOST_OF_KEY), "_UNIQUE_KEY_QUERY": "false"}
    by_id = {"key": one.unique_id or "", "maxNum": str(_MOST_OF_ID), "_UNIQUE_KEY_QUERY": "true"}
    kinds = ([by_key] if _can_be_asked(one) else []) + ([by_id] if one.unique_id else [])
    return [where | kind for kind in kinds]


def _messages(address: str, answer: Frame | None) -> list[StoredMessage]:
    if answer is None:
        raise NoAnswer(f"{address}: no answer to a query within {_ANSWERS:.0f} s")
    if answer.code == Code.QUERY_NOT_FOUND:
        return []
    if answer.code != Code.SUCCESS:
        raise Denied(address, answer)
    return list(decode_messages(answer.body))


def _seen(broker: str, message: StoredMessage) -> Seen:
    own = message.properties
    place = f"{broker} queue {message.queue_id} offset {message.queue_offset}"
    return Seen(message.topic, own.get("UNIQ_KEY", ""), own.get("KEYS", ""), own, _moment(message.stored_at), place)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
