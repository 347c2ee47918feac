"""Ends halves: EndTransaction, pipelined, once each.

The proxy's OK is not the broker's: it answers when it has passed the request on, one-way. So no end is confirmed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from grpc.aio import AioRpcError

from outbox.brokers.base import Ended, Ending, Half
from outbox.brokers.grpc.batches import Batch
from outbox.brokers.grpc.channels import Channel, Channels, Unreachable
from outbox.brokers.grpc.halves import OpenHalves
from outbox.brokers.grpc.library import Code, EndTransactionRequest, TransactionResolution, TransactionSource
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation

_RESOLUTIONS: Final = {Verdict.COMMIT: TransactionResolution.COMMIT, Verdict.ROLLBACK: TransactionResolution.ROLLBACK}
_RIGHTS: Final = (Code.UNAUTHORIZED, Code.FORBIDDEN)

Mark = Callable[[Ended], None]


def unanswered(reason: str) -> Ended:
    """Not sent, or sent and perhaps carried out."""
    return Ended(Confirmation.UNANSWERED, reason)


LATE: Final = unanswered("the time limit was over before it was sent")
_SILENCE: Final = unanswered("no answer in time")
_PASSED_ON: Final = unanswered("passed on by the proxy, whose OK is not the broker's")
_NOT_OURS: Final = unanswered(
    "another process sent the half, or it was ended before, or a minute has passed: "
    "through a proxy only the answer to a check ends it"
)


class Transactions:
    """Ends the halves that this process sent; safe to use from several threads."""

    def __init__(self, channels: Channels, halves: OpenHalves) -> None:
        self._channels = channels
        self._halves = halves

    def end(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        """Outcomes in the order of ``endings``; nothing is sent after ``until``."""
        if monotonic() >= until:
            return [LATE] * len(endings)

        async def call(ending: Ending, mark: Mark) -> Ended:
            """Takes the half out first: it is ended once, whatever comes of it."""
            half = self._halves.take(ending.half)
            if half is None:
                return _NOT_OURS
            return await self._end(ending, half.channel, until, mark)

        return Batch[Ending, Ended](endings, LATE).run(self._channels, call, until)

    def answer(self, half: Half, channel: Channel, verdict: Verdict, until: float) -> Ended:
        """Ends the half of a check over the channel that the check came by; nothing is sent after ``until``."""
        if monotonic() >= until:
            return LATE

        async def call(ending: Ending, mark: Mark) -> Ended:
            """As the answer to a check."""
            return await self._end(ending, channel, until, mark, source=TransactionSource.SOURCE_SERVER_CHECK)

        (ended,) = Batch[Ending, Ended]([Ending(half, verdict)], LATE).run(self._channels, call, until)
        return ended

    async def _end(
        self,
        ending: Ending,
        channel: Channel,
        until: float,
        mark: Mark,
        *,
        source: Any = TransactionSource.SOURCE_CLIENT,
    ) -> Ended:
        try:
            await channel.ready(until)
        except Unreachable as problem:
            return unanswered(str(problem))
        if (left := until - monotonic()) <= 0:
            return LATE
        mark(_SILENCE)
        request = _request(ending, source)
        try:
            answer = await channel.stub.EndTransaction(request, metadata=self._channels.metadata(), timeout=left)
        except AioRpcError as error:
            if ending.verdict is Verdict.COMMIT:
                await self._channels.drop(channel)  # what of it is unsent must not arrive after its window
            return unanswered(f"{error.code().name}: {error.details()}")
        return _read(answer.status)


def _read(status: Any) -> Ended:
    """The proxy's answer: only a missing right is a no; whatever else it says, a check decides."""
    if status.code == Code.OK:
        return _PASSED_ON
    said = f"code {status.code}: {status.message}"
    return Ended(Confirmation.DENIED, said) if status.code in _RIGHTS else unanswered(said)


def _request(ending: Ending, source: Any) -> Any:
    """EndTransaction; a half's handle is the transaction id that the proxy gave it."""
    request = EndTransactionRequest()
    request.topic.name = ending.half.topic
    request.message_id = ending.half.half_id
    request.transaction_id = ending.half.handle
    request.resolution = _RESOLUTIONS[ending.verdict]
    request.source = source
    return request
