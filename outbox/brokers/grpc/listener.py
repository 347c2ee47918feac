"""Hears the checks about the halves of some topics, and answers them."""

import logging
import threading
from collections.abc import Collection
from typing import Any, Final

from outbox.brokers.base import Answer, Check, Ended, OnCheck
from outbox.brokers.grpc.channels import Channel, Channels
from outbox.brokers.grpc.halves import half_of
from outbox.brokers.grpc.library import ClientType
from outbox.brokers.grpc.registration import Registration
from outbox.brokers.grpc.routes import Routes, writable
from outbox.brokers.grpc.streams import Role
from outbox.brokers.grpc.transactions import Transactions, unanswered
from outbox.brokers.grpc.workers import Workers
from outbox.lifecycle import Verdict
from outbox.verdict import Confirmation

log = logging.getLogger(__name__)


def _describe(settings: Any, topics: frozenset[str]) -> None:
    """The topics whose checks we answer."""
    settings.publishing.validate_message_type = True
    for topic in sorted(topics):
        settings.publishing.topics.add().name = topic


_PRODUCER: Final = Role(
    ClientType.PRODUCER, "", _describe, "the stream that brings checks", without="no checks are heard"
)


class Listener:
    """Registered as a producer of the topics; checks go from the streams to ``Workers``."""

    def __init__(self, channels: Channels, transactions: Transactions) -> None:
        self._registration = Registration(channels, Routes(channels, writable), _PRODUCER, self._on_question)
        self._transactions = transactions
        self._on_check: OnCheck | None = None
        self._starting = threading.Lock()
        self._workers: Workers | None = None

    def listen(self, topics: Collection[str], on_check: OnCheck) -> None:
        """Replaces what is listened to; the first call starts task and threads."""
        with self._starting:
            self._on_check = on_check
            if self._workers is None:
                self._workers = Workers()
            self._registration.register(frozenset(topics))

    def is_ready(self) -> bool:
        """Whether all proxies of the topics have acknowledged them, on streams that live."""
        return self._registration.is_ready()

    def stop(self) -> None:
        """Ends task, threads and streams; the proxies are told, so that they ask others."""
        self._on_check = None
        if self._workers is not None:
            self._workers.stop()
        self._registration.stop()

    def _on_question(self, command: Any, channel: Channel) -> None:
        on_check, workers = self._on_check, self._workers
        if on_check is None or workers is None:
            return
        check = _check(command, channel)
        workers.put(lambda: self._ask(on_check, check, channel), f"a check of half {check.half.half_id}")

    def _ask(self, on_check: OnCheck, check: Check, channel: Channel) -> None:
        try:
            on_check(check, self._answer(check, channel))
        except Exception:
            log.exception("check of half %s of topic %s failed: left open", check.half.half_id, check.half.topic)

    def _answer(self, check: Check, channel: Channel) -> Answer:
        unused = [check]

        def answer(verdict: Verdict, until: float) -> Ended:
            """Ends the half, once; UNKNOWN is said by silence, and the broker asks again.

            The proxy takes as many ends as there were checks lately, so a second COMMIT would be a second message.
            """
            if verdict is Verdict.UNKNOWN:
                return Ended(Confirmation.CONFIRMED)
            if not unused:
                return unanswered("this check was answered before")
            return self._transactions.answer(unused.pop().half, channel, verdict, until)

        return answer


def _check(command: Any, channel: Channel) -> Check:
    """The check in ``RecoverOrphanedTransactionCommand``."""
    message = command.message
    properties = dict(message.user_properties)
    half = half_of(_topic(message.topic), message.system_properties.message_id, channel.name, command.transaction_id)
    times = properties.get("TRANSACTION_CHECK_TIMES", "")
    return Check(half, properties, int(times) if times.isdecimal() else 0)


def _topic(resource: Any) -> str:
    """The topic as it was sent: a proxy may tell the part before ``%``, the namespace, apart."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else str(resource.name)
