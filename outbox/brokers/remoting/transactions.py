"""Ends half messages: END_TRANSACTION, pipelined and two-way, so that the broker's answer is a confirmation."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from outbox.brokers.base import Ended, Ending, Half
from outbox.brokers.remoting import frames
from outbox.brokers.remoting.commands import NUMBER, TEXT, Code, Request, Template, quote, refusal
from outbox.brokers.remoting.connections import Away, Connections
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.pipeline import Answers, each, exchange
from outbox.brokers.remoting.routes import Routes
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation

#: ``MessageSysFlag``: TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE, TRANSACTION_NOT_TYPE.
_FLAGS: Final = {Verdict.COMMIT: 8, Verdict.ROLLBACK: 12, Verdict.UNKNOWN: 0}
#: How the broker says that there is no half at a position.
_NOT_FOUND: Final = "Find prepared"
_TEMPLATES_MAX: Final = 1000
_LATE: Final = Ended(Confirmation.UNANSWERED, "the time limit was over before it was sent")
_CONFIRMED: Final = Ended(Confirmation.CONFIRMED)


@dataclass(slots=True)
class _Share:
    """The endings of one batch that go to one broker: place in the batch, ending, offsets."""

    address: str
    items: list[tuple[int, Ending, tuple[int, int]]] = field(default_factory=list)


class Transactions:
    """Ends halves by their stored positions; safe to use from several threads."""

    def __init__(self, connections: Connections, routes: Routes, pool: Executor) -> None:
        self._connections = connections
        self._routes = routes
        self._pool = pool
        self._templates: dict[tuple[str, str, Verdict, bool], Template] = {}

    def end(self, endings: Sequence[Ending], until: float, *, from_check: bool = False) -> list[Ended]:
        """Outcomes in the order of ``endings``; nothing is written after ``until``."""
        outcomes = [_LATE] * len(endings)
        if monotonic() < until:
            shares = self._share(endings, outcomes, until)
            each(self._pool, lambda share: self._end_share(share, outcomes, until, from_check), shares)
        return outcomes

    def leave_open(self, half: Half, until: float) -> None:
        """Answers a check with "unknown", which the broker does not answer."""
        try:
            connection = self._connections.get(self._routes.master(half.topic, half.broker, until), until)
        except Away:
            return  # silence means the same
        template = self._template(half, Verdict.UNKNOWN, from_check=True)
        offsets = parse_handle(half.handle)
        if offsets is not None:
            connection.notify(template.frame(0, _values(half, offsets)), until)

    def _share(self, endings: Sequence[Ending], outcomes: list[Ended], until: float) -> Sequence[_Share]:
        """Sorts by broker; the address is where the broker of that name is now, never what the half remembers."""
        shares: dict[str, _Share | Ended] = {}
        for index, ending in enumerate(endings):
            half = ending.half
            share = shares.get(half.broker)
            if share is None:
                share = shares[half.broker] = self._find_share(half, until)
            offsets = parse_handle(half.handle)
            if isinstance(share, Ended):
                outcomes[index] = share
            elif offsets is None:
                outcomes[index] = Ended(Confirmation.DENIED, f"handle {half.handle!r} is no position of this transport")
            else:
                share.items.append((index, ending, offsets))
        return [share for share in shares.values() if isinstance(share, _Share) and share.items]

    def _find_share(self, half: Half, until: float) -> _Share | Ended:
        try:
            return _Share(self._routes.master(half.topic, half.broker, until))
        except Away as problem:
            return Ended(Confirmation.UNANSWERED, str(problem))

    def _end_share(self, share: _Share, outcomes: list[Ended], until: float, from_check: bool) -> None:
        def encode(first: int) -> list[bytes]:
            """The requests of the share."""
            return [
                self._template(ending.half, ending.verdict, from_check=from_check).frame(
                    opaque, _values(ending.half, offsets)
                )
                for opaque, (_, ending, offsets) in enumerate(share.items, first)
            ]

        answers = exchange(
            self._connections, share.address, len(share.items), encode, until, point="commits.after_write"
        )
        for place, (index, _, _) in enumerate(share.items):
            outcomes[index] = _ended(answers.frames[place], answers)
        if answers.reason:
            self._routes.doubt(share.address)
            _close_after_silence(share, answers)

    def _template(self, half: Half, verdict: Verdict, *, from_check: bool) -> Template:
        name = (half.topic, half.group, verdict, from_check)
        template = self._templates.get(name)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[name] = _end_template(half, verdict, from_check, self._connections)
        return template


def parse_handle(handle: str) -> tuple[int, int] | None:
    """Queue offset and commit-log offset of a half, or None where the text is of another transport."""
    queue_offset, blank, commit_log_offset = handle.partition(" ")
    if blank and queue_offset.isdecimal() and commit_log_offset.isdecimal():
        return int(queue_offset), int(commit_log_offset)
    return None


def _values(half: Half, offsets: tuple[int, int]) -> tuple[int, int, str, str]:
    name = quote(half.half_id)
    return (*offsets, name, name)


def _ended(answer: Frame | None, answers: Answers) -> Ended:
    if answer is None:
        return Ended(Confirmation.UNANSWERED, answers.reason)
    if answer.code == Code.SUCCESS:
        return _CONFIRMED
    if answer.code == Code.BUSY:  # given up unread, no word on this half: it is ended again in its turn
        return Ended(Confirmation.UNANSWERED, refusal(answer.code, answer.remark))
    gone = answer.code == Code.SYSTEM_ERROR and _NOT_FOUND in answer.remark
    return Ended(Confirmation.GONE if gone else Confirmation.DENIED, refusal(answer.code, answer.remark))


def _close_after_silence(share: _Share, answers: Answers) -> None:
    """Ends the connection if a COMMIT on it is unanswered: it must not arrive after its window."""
    written = zip(share.items[: answers.written], answers.frames, strict=False)
    if any(answer is None and ending.verdict is Verdict.COMMIT for (_, ending, _), answer in written):
        answers.close()


def _end_template(half: Half, verdict: Verdict, from_check: bool, connections: Connections) -> Template:
    """END_TRANSACTION (``EndTransactionRequestHeader``)."""
    fixed = {
        "topic": half.topic,
        "producerGroup": half.group,
        "commitOrRollback": str(_FLAGS[verdict]),
        "fromTransactionCheck": "true" if from_check else "false",
    }
    varying = {"tranStateTableOffset": NUMBER, "commitLogOffset": NUMBER, "msgId": TEXT, "transactionId": TEXT}
    flag = frames.ONE_WAY if verdict is Verdict.UNKNOWN else 0
    return Template(Request.END_TRANSACTION, fixed, varying, connections.sign, flag=flag)
