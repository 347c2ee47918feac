"""What a consumer says about its deliveries: acknowledged, to come later, dead."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from outbox.brokers.remoting.commands import Code, Request
from outbox.brokers.remoting.connections import Connections, Denied, RemotingError
from outbox.brokers.remoting.pipeline import exchange
from outbox.brokers.remoting.receipts import Receipt
from outbox.brokers.remoting.routes import Routes
from outbox.brokers.remoting.stored import MalformedMessage
from outbox.brokers.source import Delivery
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds for an answer.
ANSWER: Final = 3.0
_DEAD_LETTER: Final = "-1"


class Acknowledgements:
    """Requests about the deliveries of one group; safe to use from several threads.

    The broker says yes to receipts that have expired, so nothing is asked with one, and a yes that comes too late is
    none.
    """

    def __init__(self, connections: Connections, routes: Routes, group: str) -> None:
        self._connections = connections
        self._routes = routes
        self._group = group

    def acknowledge(self, delivery: Delivery) -> bool:
        """Takes the delivery off for good; False without a request once it has expired."""
        receipt = Receipt.parse(delivery.receipt)
        return self._ask(delivery, receipt, Request.ACK_MESSAGE, self._fields(delivery, receipt)) is not None

    def acknowledge_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """As ``acknowledge`` for each, pipelined: one write and one wait for each broker, an answer for each delivery.

        BATCH_ACK_MESSAGE would answer once for all, and says yes even to a topic that does not exist.
        """
        positions: dict[str, list[int]] = {}
        found = [Receipt.parse(delivery.receipt) for delivery in deliveries]
        for index, delivery in enumerate(deliveries):
            if monotonic() < delivery.invisible_until:
                positions.setdefault(found[index].broker, []).append(index)
        confirmed = [False] * len(deliveries)
        for broker, indexes in positions.items():
            for index in self._acknowledge_at(broker, [(i, deliveries[i], found[i]) for i in indexes]):
                confirmed[index] = True
        return confirmed

    def change(self, delivery: Delivery, invisible: float) -> Receipt | None:
        """CHANGE_MESSAGE_INVISIBLETIME; the receipt that replaces the old one.

        A yes without a new receipt is none: nothing can be asked about the delivery any more, and it comes again.
        """
        receipt = Receipt.parse(delivery.receipt)
        fields = {**self._fields(delivery, receipt), "invisibleTime": str(max(1, int(invisible * 1000)))}
        answer = self._ask(delivery, receipt, Request.CHANGE_INVISIBLE, fields)
        try:
            return None if answer is None else receipt.renewed(answer)
        except MalformedMessage as problem:
            log.warning("%s of topic %s comes again: %s", delivery.unique_id, delivery.topic, problem)
            return None

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """Has the broker copy the message to ``%DLQ%group``, then acknowledges; the reason goes to the log."""
        receipt = Receipt.parse(delivery.receipt)
        fields = {
            "offset": receipt.commit_log_offset,
            "group": self._group,
            "delayLevel": _DEAD_LETTER,
            "originMsgId": delivery.unique_id,
            "originTopic": receipt.real_topic(delivery.topic, self._group),
            "unitMode": "false",
            "maxReconsumeTimes": "0",
        }
        log.warning("burying %s of topic %s, key %s: %s", delivery.unique_id, delivery.topic, delivery.keys, reason)
        if self._ask(delivery, receipt, Request.SEND_MESSAGE_BACK, fields) is None:
            return False
        return self.acknowledge(delivery)

    def _acknowledge_at(self, broker: str, items: Sequence[tuple[int, Delivery, Receipt]]) -> Iterator[int]:
        """The indexes of those that one broker confirmed in time."""
        until = min(monotonic() + ANSWER, max(delivery.invisible_until for _, delivery, _ in items))
        try:
            address = self._routes.master(items[0][1].topic, broker, until)
        except RemotingError as problem:
            log.warning("%d deliveries are not acknowledged: %s", len(items), problem)
            return

        def encode(first: int) -> list[bytes]:
            """The requests of one broker."""
            return [
                self._connections.request(Request.ACK_MESSAGE, opaque, self._fields(delivery, receipt))
                for opaque, (_, delivery, receipt) in enumerate(items, first)
            ]

        answers = exchange(self._connections, address, len(items), encode, until)
        for (index, delivery, _), answer in zip(items, answers.frames, strict=True):
            if answer is not None and answer.code == Code.SUCCESS and monotonic() < delivery.invisible_until:
                yield index

    def _fields(self, delivery: Delivery, receipt: Receipt) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": receipt.real_topic(delivery.topic, self._group),
            "queueId": receipt.queue,
            "offset": receipt.offset,
            "extraInfo": receipt.handle,
        }

    def _ask(
        self, delivery: Delivery, receipt: Receipt, code: Request, fields: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """The fields of the broker's yes, in time; None otherwise: the broker also says yes to expired receipts."""
        left = delivery.invisible_until - monotonic()
        if left <= 0:
            return None
        try:
            address = self._routes.master(delivery.topic, receipt.broker)
            answer = self._connections.call(address, code, fields, timeout=min(left, ANSWER))
        except RemotingError as problem:
            log.warning("%s of topic %s: %s", delivery.unique_id, delivery.topic, problem)
            return None
        if answer.code != Code.SUCCESS:
            log.warning("%s of topic %s: %s", delivery.unique_id, delivery.topic, Denied(address, answer))
            return None
        return answer.ext if monotonic() < delivery.invisible_until else None
