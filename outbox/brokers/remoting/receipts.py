"""What a POP answer says about where its messages stand, and the receipt that ends or extends a delivery.

A receipt is the commit-log offset of the message and the broker's own handle (``ExtraInfoUtil`` of RocketMQ), with
blanks between its fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage

#: Kinds of topics in a handle: normal, and the two spellings of retry topics.
_NORMAL: Final = "0"
_RETRY: Final = {"1": "%RETRY%{group}_{topic}", "2": "%RETRY%{group}+{topic}"}
_RECEIPT_FIELDS: Final = 9
#: What names a checkpoint in an answer.
_CHECKPOINT: Final = ("popTime", "invisibleTime", "reviveQid")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position of one delivery; the broker knows it by exactly these words."""

    commit_log_offset: str
    start_offset: str
    pop_time: str
    invisible: str
    revive_queue: str
    kind: str
    broker: str
    queue: str
    offset: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The receipt in ``text``; ``MalformedMessage`` where it is none."""
        fields = text.split(" ")
        if len(fields) != _RECEIPT_FIELDS:
            raise MalformedMessage(f"receipt {text!r}: {len(fields)} fields, expected {_RECEIPT_FIELDS}")
        return cls(*fields)

    @property
    def handle(self) -> str:
        """The broker's handle."""
        return " ".join(self._fields()[1:])

    def __str__(self) -> str:
        return " ".join(self._fields())

    def real_topic(self, topic: str, group: str) -> str:
        """The topic that the broker keeps the message in."""
        return _RETRY[self.kind].format(group=group, topic=topic) if self.kind in _RETRY else topic

    def renewed(self, answer: Mapping[str, Any]) -> Self:
        """The receipt after the invisible time was changed: a checkpoint of its own for this one message.

        ``MalformedMessage`` where the broker's yes does not name the checkpoint: the delivery has no receipt any more.
        """
        missing = [name for name in _CHECKPOINT if not answer.get(name)]
        if missing:
            raise MalformedMessage(f"the broker's yes to a renewal lacks {', '.join(missing)}")
        pop_time, invisible, revive_queue = (str(answer[name]) for name in _CHECKPOINT)
        return replace(
            self, start_offset=self.offset, pop_time=pop_time, invisible=invisible, revive_queue=revive_queue
        )

    def _fields(self) -> Sequence[str]:
        return (
            self.commit_log_offset,
            self.start_offset,
            self.pop_time,
            self.invisible,
            self.revive_queue,
            self.kind,
            self.broker,
            self.queue,
            self.offset,
        )


def receipts(
    messages: Sequence[StoredMessage], answer: Mapping[str, Any], broker: str
) -> Iterator[tuple[StoredMessage, Receipt]]:
    """Each message of a POP answer with its receipt; ``MalformedMessage`` where the answer does not fit together.

    A retried message brings its handle along. For the others the answer lists, queue by queue, where the checkpoint
    starts and which offsets it covers; the i-th lowest queue offset belongs to the i-th of them.
    """
    starts = _by_queue(answer.get("startOffsetInfo"))
    offsets = _by_queue(answer.get("msgOffsetInfo"))
    ranks = _ranks(messages)
    for message in messages:
        own = message.properties.get("POP_CK")
        if own is not None:
            yield message, Receipt.parse(f"{message.commit_log_offset} {own}")
            continue
        try:
            queue = str(message.queue_id)
            offset = offsets[queue].split(",")[ranks[queue].index(message.queue_offset)]
            pop_time, invisible, revive_queue = (str(answer[name]) for name in _CHECKPOINT)
            place = (starts[queue], pop_time, invisible, revive_queue)
        except (KeyError, IndexError) as problem:
            raise MalformedMessage(f"the POP answer does not cover queue {message.queue_id}: {problem!r}") from problem
        yield message, Receipt(str(message.commit_log_offset), *place, _NORMAL, broker, queue, offset)


def deliveries_before(answer: Mapping[str, Any], receipt: Receipt) -> int:
    """How often an orderly group had the message before: it stays in its queue, so the answer counts, not the message.

    Piece by piece ``kind qo<queue>%<offset> times`` (``ExtraInfoUtil.buildQueueOffsetOrderCountInfo``), for messages
    that had a delivery before.
    """
    wanted = f"{_NORMAL} qo{receipt.queue}%{receipt.offset} "
    pieces = str(answer.get("orderCountInfo") or "").split(";")
    return next((int(piece.removeprefix(wanted)) for piece in pieces if piece.startswith(wanted)), 0)


def _by_queue(text: object) -> dict[str, str]:
    """Queue id and value of the normal topic in ``kind queue value;…``."""
    pieces = (piece.split(" ") for piece in str(text or "").split(";") if piece)
    return {piece[1]: piece[2] for piece in pieces if len(piece) == 3 and piece[0] == _NORMAL}


def _ranks(messages: Sequence[StoredMessage]) -> dict[str, list[int]]:
    """The queue offsets of the messages that bring no handle along, sorted, by queue id."""
    ranks: dict[str, list[int]] = {}
    for message in messages:
        if "POP_CK" not in message.properties:
            ranks.setdefault(str(message.queue_id), []).append(message.queue_offset)
    return {queue: sorted(offsets) for queue, offsets in ranks.items()}
