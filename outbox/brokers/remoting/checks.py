"""The broker's questions about halves: decoded, handed to a few threads, answered."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.brokers.base import Answer, Check, Ended, Ending, Half, OnCheck
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage, decode_messages
from outbox.brokers.remoting.transactions import Transactions
from outbox.clock import monotonic
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation

log = logging.getLogger(__name__)

#: Questions that wait for a thread; the broker repeats those that find no place.
WAITING: Final = 1000
THREADS: Final = 4
#: Seconds for writing "unknown" after a handler has failed.
_UNKNOWN_WITHIN: Final = 3.0


@dataclass(frozen=True, slots=True)
class Question:
    """A check as it came in, and the name of the broker that asks."""

    frame: Frame
    broker: str


def decode_check(question: Question) -> Check:
    """The check of a CHECK_TRANSACTION_STATE request; ``MalformedMessage`` where it is none.

    Its half is at the position that the check names: the broker appends a half again before each check. Topic and group
    come from the stored message, since headers differ between 4.9 and 5.x. A row that adopted a half of a nameless
    broker could never be settled.
    """
    if not question.broker:
        raise MalformedMessage("the check does not name its broker, and no route leads to where it came from")
    ext = question.frame.ext
    message = _only(question.frame.body)
    try:
        handle = f"{int(ext['tranStateTableOffset'])} {int(ext['commitLogOffset'])}"
        half_id, group = message.properties["UNIQ_KEY"], message.properties["PGROUP"]
        times = int(message.properties.get("TRANSACTION_CHECK_TIMES") or 0)
    except (KeyError, ValueError, TypeError) as problem:
        raise MalformedMessage(f"a field of the check is missing or no number: {problem!r}") from problem
    return Check(Half(message.topic, half_id, question.broker, handle, group), message.properties, times)


def _only(body: bytes) -> StoredMessage:
    messages = list(decode_messages(body))
    if len(messages) != 1:
        raise MalformedMessage(f"a check carries one message, this one {len(messages)}")
    return messages[0]


class CheckWorkers:
    """A few daemon threads that answer checks; ``stop`` lets a running handler end by itself."""

    def __init__(self, transactions: Transactions, on_check: Callable[[], OnCheck | None]) -> None:
        self._transactions = transactions
        self._on_check = on_check
        self._questions: queue.Queue[Question | None] = queue.Queue(WAITING)
        self._stopped = False
        self._threads: Sequence[threading.Thread] = [
            threading.Thread(target=self._work, name=f"check-{number}", daemon=True) for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, question: Question) -> None:
        """Takes a question in without waiting; one too many is dropped."""
        try:
            self._questions.put_nowait(question)
        except queue.Full:
            log.warning("broker %s: dropped a check, %d wait already; it asks again", question.broker, WAITING)

    def stop(self) -> None:
        """Lets the threads end; questions that wait are dropped."""
        self._stopped = True
        for _ in self._threads:
            try:
                self._questions.put_nowait(None)
            except queue.Full:
                return  # the threads look at the flag after each question

    def _work(self) -> None:
        while not self._stopped:
            question = self._questions.get()
            if question is not None and not self._stopped:
                self._look_at(question)

    def _look_at(self, question: Question) -> None:
        on_check = self._on_check()
        if on_check is None:
            return
        try:
            check = decode_check(question)
        except MalformedMessage:
            log.exception("broker %s: a check cannot be read; it is left open", question.broker)
            return
        try:
            on_check(check, self._answer(check.half))
        except Exception:
            log.exception("check of half %s of topic %s failed: answered unknown", check.half.half_id, check.half.topic)
            self._transactions.leave_open(check.half, monotonic() + _UNKNOWN_WITHIN)

    def _answer(self, half: Half) -> Answer:
        def answer(verdict: Verdict, until: float) -> Ended:
            """Ends the half at the position of the check."""
            if verdict is Verdict.UNKNOWN:
                self._transactions.leave_open(half, until)
                return Ended(Confirmation.CONFIRMED)
            (ended,) = self._transactions.end([Ending(half, verdict)], until, from_check=True)
            return ended

        return answer
