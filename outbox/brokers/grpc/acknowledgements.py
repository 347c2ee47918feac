"""What a consumer says about its deliveries through a proxy: acknowledged, to come later, dead."""

import logging
from concurrent.futures import CancelledError
from typing import Any, Final

from grpc.aio import AioRpcError

from outbox.brokers.grpc.channels import Channels, Unreachable
from outbox.brokers.grpc.library import (
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    Code,
    ForwardMessageToDeadLetterQueueRequest,
)
from outbox.brokers.grpc.messages import receipt_of, renewed
from outbox.brokers.source import Delivery
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds for an answer.
_ANSWER: Final = 3.0


class Acknowledgements:
    """Requests about the deliveries of one group; safe to use from several threads.

    They go to the proxy that delivered. A proxy refuses receipts that have expired by its clock; by ours nothing is
    asked with one, and a yes that comes too late is none.
    """

    def __init__(self, channels: Channels, group: str) -> None:
        self._channels = channels
        self._group = group

    def acknowledge(self, delivery: Delivery) -> bool:
        """AckMessage; False without a request once the delivery has expired."""
        request = self._about(AckMessageRequest(), delivery)
        request.entries.add(message_id=delivery.unique_id, receipt_handle=receipt_of(delivery)[1])
        return self._ask(delivery, "AckMessage", request) is not None

    def change(self, delivery: Delivery, invisible: float) -> str | None:
        """ChangeInvisibleDuration; the receipt that replaces the old one.

        A yes without a new receipt is none: nothing can be asked about the delivery any more, and it comes again.
        """
        request = self._about(ChangeInvisibleDurationRequest(), delivery)
        request.message_id, request.receipt_handle = delivery.unique_id, receipt_of(delivery)[1]
        request.invisible_duration.FromMilliseconds(max(1, int(invisible * 1000)))
        answer = self._ask(delivery, "ChangeInvisibleDuration", request)
        return renewed(delivery, answer.receipt_handle) if answer is not None and answer.receipt_handle else None

    def bury(self, delivery: Delivery, reason: str) -> bool:
        """ForwardMessageToDeadLetterQueue, then an acknowledgement; the reason goes to the log.

        The proxy acknowledges by itself too, but does not tell whether that went well.
        """
        request = self._about(ForwardMessageToDeadLetterQueueRequest(), delivery)
        request.message_id, request.receipt_handle = delivery.unique_id, receipt_of(delivery)[1]
        request.delivery_attempt = delivery.attempt
        log.warning("burying %s of topic %s, key %s: %s", delivery.unique_id, delivery.topic, delivery.keys, reason)
        if self._ask(delivery, "ForwardMessageToDeadLetterQueue", request) is None:
            return False
        return self.acknowledge(delivery)

    def _about(self, request: Any, delivery: Delivery) -> Any:
        request.group.name = self._group
        request.topic.name = delivery.topic
        return request

    def _ask(self, delivery: Delivery, method: str, request: Any) -> Any:
        """The proxy's yes, in time; None otherwise."""
        until = min(delivery.invisible_until, monotonic() + _ANSWER)
        if monotonic() >= until:
            return None
        try:
            answer = self._channels.run(self._call(delivery, method, request, until)).result(2 * _ANSWER)
        except (Unreachable, AioRpcError, TimeoutError, CancelledError) as problem:
            log.warning("%s of topic %s: %s: %s", delivery.unique_id, delivery.topic, method, _words(problem))
            return None
        if refusal := _refusal(answer):
            log.warning("%s of topic %s: %s: %s", delivery.unique_id, delivery.topic, method, refusal)
            return None
        return answer if monotonic() < delivery.invisible_until else None

    async def _call(self, delivery: Delivery, method: str, request: Any, until: float) -> Any:
        channel = self._channels.known(receipt_of(delivery)[0])
        await channel.ready(until)
        call = getattr(channel.stub, method)
        return await call(request, metadata=self._channels.metadata(), timeout=max(0.0, until - monotonic()))


def _refusal(answer: Any) -> str:
    """Why the answer, or an entry of it, is no; "": it is yes."""
    for status in (answer.status, *(entry.status for entry in getattr(answer, "entries", ()))):
        if status.code != Code.OK:
            return f"code {status.code}: {status.message}"
    return ""


def _words(problem: BaseException) -> str:
    return f"{problem.code().name}: {problem.details()}" if isinstance(problem, AioRpcError) else repr(problem)
