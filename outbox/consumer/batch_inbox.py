"""``BatchInbox`` (C6): many messages in one transaction, for logs and tracking events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outbox.brokers.source import Delivery
from outbox.consumer.batch_claims import insert_all
from outbox.consumer.calling import call
from outbox.consumer.claims import Claim
from outbox.consumer.drivers import opened
from outbox.consumer.errors import CommittedEarly
from outbox.consumer.failures import outcome_of
from outbox.consumer.guard import guarded
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, Outcome, Park, Processed, Retry
from outbox.consumer.sql_consumer import Options, SqlConsumer
from outbox.errors import SettingsError

Handler = Callable[[Sequence[Message], Session], object]
#: SQLite takes 32,766 values in a statement, six to a row.
_MOST = 5000


@dataclass(frozen=True, slots=True)
class _Item:
    """One message of a batch, by its place in it."""

    place: int
    message: Message
    claim: Claim
    handler: Handler


class BatchInbox(SqlConsumer):
    """A consumer whose handlers, ``def on_events(messages, session)``, take many messages at once.

    The messages that are new, their effects and their inbox rows commit together: exactly once per (consumer, key), as
    with an ``Inbox``. Each message has an outcome of its own. A message that makes the batch fail is found by halving
    it, so that it alone fails; a duplicate among them is acknowledged by itself. ``batch`` is how many at most.
    """

    def __init__(self, database: Engine | AsyncEngine | str, *, batch: int = 100, **options: Unpack[Options]) -> None:
        super().__init__(database, **options)
        if not 1 <= batch <= _MOST:
            raise SettingsError(f"batch: {batch} must be 1 to {_MOST}, which one statement can name")
        self.batch = batch

    def process_batch(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """One outcome for each delivery, in order; never raises for what handlers or store do."""
        outcomes: dict[int, Outcome] = {}
        items: list[_Item] = []
        for place, delivery in enumerate(deliveries):
            admitted = self.admit(delivery)
            if isinstance(admitted, tuple):
                message, handler = admitted
                items.append(_Item(place, message, Claim.of(self.consumer, message), handler))
            else:
                outcomes[place] = admitted
        first, repeats = _collapsed(items)
        outcomes |= self._bridge.run(self._bisected, first)
        outcomes |= {item.place: _as_repeat(item, of, outcomes[of.place]) for item, of in repeats}
        return [outcomes[place] for place in range(len(deliveries))]

    def _execute(self, message: Message, handler: Handler) -> Outcome:
        try:
            return self._transaction([_Item(0, message, Claim.of(self.consumer, message), handler)])[0]
        except Exception as error:  # noqa: BLE001 -- named in the outcome, which the runner logs
            return outcome_of(error)

    def _bisected(self, items: Sequence[_Item]) -> dict[int, Outcome]:
        """All at once if it works, else either half by itself, down to the message that fails."""
        if not items:
            return {}
        try:
            return self._transaction(items)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 -- named in the outcome; one that exits takes no other with it
            failed = outcome_of(error)
            # What was committed early would pass for repeats of itself.
            is_common = isinstance(error, CommittedEarly) or (
                isinstance(failed, Retry) and failed.outage and not failed.begun
            )
        if len(items) == 1 or is_common:
            return {item.place: failed for item in items}
        middle = len(items) // 2
        return self._bisected(items[:middle]) | self._bisected(items[middle:])

    def _transaction(self, items: Sequence[_Item]) -> dict[int, Outcome]:
        with opened(self._guarded, self._lock_timeout) as connection:
            sorted_out = insert_all(connection, [item.claim for item in items])
            known = {item.place: sorted_out.outcome_of(item.claim) for item in items}
            new = [item for item in items if known[item.place] is None]
            with guarded(connection) as guard:
                for handler, messages in _by_handler(new).items():
                    call(partial(handler, messages, guard.session), guard.saw)
                guard.settle()
                guard.commit()
        return {place: outcome or Processed() for place, outcome in known.items()}


def _collapsed(items: Sequence[_Item]) -> tuple[list[_Item], list[tuple[_Item, _Item]]]:
    """The first message of each key, and the others with the one that they repeat."""
    first: dict[bytes, _Item] = {}
    repeats = [(item, of) for item in items if (of := first.setdefault(item.claim.key, item)) is not item]
    return list(first.values()), repeats


def _as_repeat(item: _Item, of: _Item, outcome: Outcome) -> Outcome:
    """A repeat of what was done is a duplicate, of what failed it fails as well; another payload is another fact."""
    if (item.claim.topic, item.claim.payload_hash) != (of.claim.topic, of.claim.payload_hash):
        return Park("its key was used by another message of the same batch; one business fact needs one key of its own")
    return Duplicate() if isinstance(outcome, Processed) else outcome


def _by_handler(items: Sequence[_Item]) -> dict[Handler, list[Message]]:
    found: dict[Handler, list[Message]] = {}
    for item in items:
        found.setdefault(item.handler, []).append(item.message)
    return found
