"""Deliveries that this process holds: from reception until the broker was told what became of them."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.brokers.source import Delivery, Source
from outbox.clock import monotonic

log = logging.getLogger(__name__)


class Held:
    """One delivery with its latest receipt; renewing and answering it exclude each other."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._lock = threading.Lock()
        self._answered = False
        self._lost = False
        self._outages = 0

    @property
    def delivery(self) -> Delivery:
        """The delivery with the latest receipt."""
        return self._delivery

    @property
    def is_ours(self) -> bool:
        """Whether nobody else can have received it, by our own clock."""
        return not self._lost and monotonic() < self._delivery.invisible_until

    def lost_its_store(self, begun: bool) -> int:
        """Counts an outage; how many in a row came after its handler had ``begun``, with the store there until then."""
        self._outages = self._outages + 1 if begun else 0
        return self._outages

    def renew(self, source: Source, invisible: float) -> None:
        """Extends the invisible time once a third of it is gone; never after it ended, which would make a copy."""
        with self._lock:
            due = self._delivery.invisible_until - 2 * invisible / 3
            if self._answered or not self.is_ours or monotonic() < due:
                return
            renewed = source.renew(self._delivery, invisible)
            if renewed is None:
                # The answer may have been lost, and a second renewal with the old receipt would make a copy.
                self._lost = True
                log.warning("message %s: its invisible time could not be extended", self._delivery.unique_id)
            else:
                self._delivery = renewed

    def answer(self, what: str, call: Callable[[Delivery], bool]) -> None:
        """Tells the broker, once, under the latest receipt; without a confirmation the delivery comes again."""
        with self._lock:
            self._answered = True
            if monotonic() >= self._delivery.invisible_until:
                log.warning("message %s: too late for its %s, it comes again", self._delivery.unique_id, what)
            elif not self._confirmed(what, call):
                log.warning("message %s: %s not confirmed, it may come again", self._delivery.unique_id, what)

    def _confirmed(self, what: str, call: Callable[[Delivery], bool]) -> bool:
        try:
            return call(self._delivery)
        except Exception:
            log.exception("message %s: %s failed", self._delivery.unique_id, what)
            return False


class Holdings:
    """Everything that is held, kept invisible by a thread of its own."""

    def __init__(self, source: Source, invisible: float) -> None:
        self._source = source
        self._invisible = invisible
        self._held: set[Held] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-renewals", daemon=True)

    def add(self, deliveries: list[Delivery]) -> list[Held]:
        """Takes deliveries on."""
        added = [Held(delivery) for delivery in deliveries]
        with self._lock:
            self._held.update(added)
        return added

    def drop(self, held: Held) -> None:
        """Lets go of one that was answered, or lost."""
        with self._lock:
            self._held.discard(held)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renews until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._closing.set()
            self._thread.join()

    def _run(self) -> None:
        # A third of the time is the moment to renew; looking five times as often keeps close to it.
        while not self._closing.wait(self._invisible / 15):
            with self._lock:
                held = list(self._held)
            for each in held:
                self._renew(each)

    def _renew(self, held: Held) -> None:
        try:
            held.renew(self._source, self._invisible)
        except Exception:
            log.exception("message %s: renewal failed", held.delivery.unique_id)
